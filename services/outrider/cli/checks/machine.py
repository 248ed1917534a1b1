"""The machine and the installation: interpreter, packages, processor, compiler, memory.

Knows /proc, the path and package metadata. Must not import what it checks: a broken torch must not break its own diagnosis.
"""

from __future__ import annotations

import importlib.metadata
import os
import sys
from pathlib import Path

from packaging.requirements import Requirement

from outrider.cli.checks.finding import Finding, broken, fine, note
from outrider.launch.threads import usable_cores
from outrider_kernels.native_library import find_compiler
from outrider_kernels.thin_team import prefers_fixed16

MIN_PYTHON = (3, 11)
MIN_FREE_GIB = 2.0
MATRIX_FLAGS = ("avx2", "avx512f", "avx512_vnni", "avx512_bf16", "avx512_fp16", "amx_tile", "amx_bf16", "amx_int8", "asimd", "bf16")
INSTALL = "run `make setup` in the repository, or `pip install -e .`"
SHOWN_PACKAGES = ("torch", "transformers", "grpcio", "protobuf", "tokenizers", "safetensors", "numpy")


def check_machine() -> list[Finding]:
    """Interpreter, packages, processor, compiler, threads and memory."""
    return [_python(), *_packages(), _processor(), _compiler(), _threads(), _memory()]


def processor_flags() -> tuple[str, ...]:
    """The instruction sets that matter for matrix products, as /proc/cpuinfo names them."""
    for line in _lines("/proc/cpuinfo"):
        if line.lower().startswith(("flags", "features")):
            present = set(line.split(":", 1)[1].split())
            return tuple(flag for flag in MATRIX_FLAGS if flag in present)
    return ()


def processor_name() -> str:
    """The processor's model name, or `unknown processor`."""
    names = (line.split(":", 1)[1].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name"))
    return next(names, "unknown processor")


def free_gib() -> float:
    """Memory available to new processes."""
    for line in _lines("/proc/meminfo"):
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) / 2**20
    return 0.0


def versions() -> dict[str, str]:
    """Installed versions of the packages whose behaviour shows in measurements."""
    installed = {distribution.name.lower(): distribution.version for distribution in importlib.metadata.distributions()}
    return {name: installed[name] for name in SHOWN_PACKAGES if name in installed}


def _python() -> Finding:
    version = ".".join(map(str, sys.version_info[:3]))
    if sys.version_info < MIN_PYTHON:
        return broken("python", version, f"use Python {MIN_PYTHON[0]}.{MIN_PYTHON[1]} or newer: PYTHON=python3.11 make setup")
    return fine("python", f"{version} ({sys.executable})")


def _packages() -> list[Finding]:
    try:
        requirements = importlib.metadata.requires("outrider") or []
    except importlib.metadata.PackageNotFoundError:
        return [note("packages", "outrider is not installed, it runs from a folder", INSTALL)]
    problems = []
    for requirement in map(Requirement, requirements):
        if requirement.marker is not None and not requirement.marker.evaluate({"extra": ""}):
            continue
        try:
            version = importlib.metadata.version(requirement.name)
        except importlib.metadata.PackageNotFoundError:
            problems.append(broken("packages", f"{requirement.name} is missing", INSTALL))
            continue
        if not requirement.specifier.contains(version, prereleases=True):
            problems.append(broken("packages", f"{requirement.name} {version} is installed, {requirement} is needed", INSTALL))
    shown = ", ".join(f"{name} {version}" for name, version in versions().items())
    return problems or [fine("packages", shown)]


def _processor() -> Finding:
    flags = processor_flags()
    found = f"{processor_name()}: {', '.join(flags) or 'no known matrix instructions'}"
    if "amx_bf16" in flags or "avx512_bf16" in flags:
        return note("processor", found, "it multiplies bf16 fast: try --dtype bfloat16, which verifies many tokens for the price of one")
    if prefers_fixed16():
        return fine("processor", f"{found} (checkpoints kept in bf16 are multiplied as whole numbers of 16 bits: --dtype auto)")
    return fine("processor", f"{found} (no bf16 units: float32 is the better dtype for few rows)")


def _compiler() -> Finding:
    compiler = find_compiler()
    if compiler is None:
        remedy = "install gcc or clang, or set CC: without one, fp32 on a CPU runs on numpy, at about half the speed"
        return note("compiler", "no C compiler", remedy)
    return fine("compiler", f"{compiler} (matrix products of few rows are compiled for this processor)")


def _threads() -> Finding:
    cores = usable_cores()
    found = f"{len(cores)} usable of {os.cpu_count()}"
    if len(cores) < 2:
        return note("cores", found, "drafter and verifier will share one core: overlap cannot help, leave out --pacing pearl")
    return fine("cores", found)


def _memory() -> Finding:
    gib = free_gib()
    if gib < MIN_FREE_GIB:
        return broken(
            "memory", f"{gib:.1f} GiB available", f"free at least {MIN_FREE_GIB:g} GiB: each service imports torch (0.4 GiB) and its model"
        )
    return fine("memory", f"{gib:.1f} GiB available")


def _lines(path: str) -> list[str]:
    file = Path(path)
    return file.read_text(errors="replace").splitlines() if file.exists() else []
