"""What holds for every test: one compute thread, no network for models, quiet libraries.

Set before anything imports torch, which reads these once. Tests that need another number of threads start a process of their own.
How long an example takes is the machine's load, not the code's fault: Hypothesis does not judge it.

What collecting imports is a million objects that live as long as the process: they are neither searched for garbage while they come, nor
later, each time that a test's own objects are.
"""

from __future__ import annotations

import gc
import os

from hypothesis import HealthCheck, settings

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "GRPC_VERBOSITY": "ERROR",
}

os.environ.update(SETTINGS)

settings.register_profile("outrider", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("outrider")

gc.disable()


def pytest_collection_finish() -> None:
    """All is imported: from here on garbage is collected, among what comes."""
    gc.freeze()
    gc.enable()
