"""What there is to run on, asked in a process of its own: a CUDA context takes half a gigabyte and stays as long as its process.

Run as `python -m outrider_bench.gpu.card_probe DEVICE`; prints one line of JSON, {"missing": why} or a Card's fields. Must not know
what will run.
"""

from __future__ import annotations

import importlib.metadata
import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable

import torch

from outrider.cli.checks.machine import free_gib, processor_name
from outrider_kernels.card_ceilings import copy_bytes_per_s

HOST_COPY_BYTES = 1 << 27
HOST_REPEATS = 5
ASKED_OF_DRIVER = "driver_version,power.limit,clocks.max.sm"
ASK_DEADLINE_S = 20.0


def probe(device: str) -> dict[str, object]:
    """device: cuda or cpu."""
    if device == "cpu":
        return _host()
    missing = missing_for_cuda(torch.version.cuda, torch.cuda.is_available, torch.cuda.is_bf16_supported)
    return {"missing": missing} if missing else _card()


def missing_for_cuda(built_for: str | None, is_available: Callable[[], bool], has_bf16: Callable[[], bool]) -> str:
    """Why no target can run on a card here; empty when one can. built_for: the CUDA version of torch's build."""
    if built_for is None:
        return f"no CUDA: torch {torch.__version__} is a build without it"
    if not is_available():
        return f"no CUDA card: torch {torch.__version__} (CUDA {built_for}) sees none"
    return "" if has_bf16() else "no bfloat16: this card does not compute in it"


def _card() -> dict[str, object]:
    properties = torch.cuda.get_device_properties(0)
    speed = copy_bytes_per_s()
    torch.cuda.empty_cache()
    free, total = torch.cuda.mem_get_info()
    facts = {
        "card": f"{properties.name}, {properties.multi_processor_count} multiprocessors, compute capability "
        f"{properties.major}.{properties.minor}",
        "card memory": f"{total / 2**30:.1f} GiB, {free / 2**30:.1f} GiB free",
        "card copies": f"{speed / 1e12:.2f} TB/s read and written, measured",
        "driver": _driver(str(getattr(properties, "uuid", ""))),
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
        "triton": _version("triton"),
    }
    return {"facts": facts, "free_bytes": free, "copy_bytes_per_s": speed}


def _host() -> dict[str, object]:
    speed = _host_copy_bytes_per_s()
    facts = {
        "card": f"none: {processor_name()} instead, which says nothing about a card",
        "memory copies": f"{speed / 1e9:.1f} GB/s read and written, one thread, measured",
        "torch": torch.__version__,
        "triton": _version("triton"),
    }
    return {"facts": facts, "free_bytes": int(free_gib() * 2**30), "copy_bytes_per_s": speed}


def _host_copy_bytes_per_s() -> float:
    source = torch.ones(HOST_COPY_BYTES, dtype=torch.uint8)
    target = torch.zeros_like(source)
    times = []
    for _ in range(HOST_REPEATS):
        began_s = time.perf_counter()
        target.copy_(source)
        times.append(time.perf_counter() - began_s)
    return 2 * HOST_COPY_BYTES / min(times)


def _driver(uuid: str) -> str:
    """Version, power limit and highest clock, as the driver's own tool says; `unknown` without it."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return "unknown: there is no nvidia-smi"
    chosen = ["--id", uuid if uuid.startswith("GPU-") else f"GPU-{uuid}"] if uuid else []
    command = [tool, f"--query-gpu={ASKED_OF_DRIVER}", "--format=csv,noheader", *chosen]
    try:
        asked = subprocess.run(command, capture_output=True, text=True, check=True, timeout=ASK_DEADLINE_S)
    except (OSError, subprocess.SubprocessError) as error:
        return f"unknown: nvidia-smi failed ({type(error).__name__})"
    version, power, clock = (part.strip() for part in asked.stdout.splitlines()[0].split(","))
    return f"{version}, power limit {power}, clock up to {clock}"


def _version(package: str) -> str:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "not installed: the engine's attention and picks are plain torch"


if __name__ == "__main__":
    print(json.dumps(probe(sys.argv[1])))
