"""What holds for every test: one compute thread, no network for models, quiet libraries.

Set before anything imports torch, which reads these once. Tests that need another number of threads start a process of their own.
How long an example takes is the machine's load, not the code's fault: Hypothesis does not judge it. Nor is a run a matter of luck: its
examples are those of the run before. `--hypothesis-profile=exploring` draws others each time.

What collecting imports is a million objects that live as long as the process: they are neither searched for garbage while they come, nor
later, each time that a test's own objects are.
"""

from __future__ import annotations

import gc
import os

import pytest
from hypothesis import HealthCheck, settings

SETTINGS = {
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "HF_HUB_OFFLINE": "1",
    "GRPC_VERBOSITY": "ERROR",
}

os.environ.update(SETTINGS)

settings.register_profile("exploring", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("outrider", settings.get_profile("exploring"), derandomize=True)
settings.load_profile("outrider")

gc.disable()


def pytest_collection_finish(session: pytest.Session) -> None:
    """All is imported: from here on garbage is collected, among what comes. Whoever forks services finds the process that does it ready."""
    gc.freeze()
    gc.enable()
    modules = {item.module for item in session.items if isinstance(item, pytest.Function)}
    if not session.config.option.collectonly and any({"ForkedService", "ForkedDeployment"} & vars(module).keys() for module in modules):
        from forked_services import nursery

        nursery()
