"""What holds for every test: one compute thread, no network for models, quiet libraries.

Set before anything imports torch, which reads these once. Tests that need another number of threads start a process of their own.
"""

from __future__ import annotations

import os

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "GRPC_VERBOSITY": "ERROR",
}

os.environ.update(SETTINGS)
