"""Deliberately broken copies of kernels: what a comparison must catch."""

from __future__ import annotations

from pathlib import Path

import outrider_kernels


def broken_kernel(kernel: str, mutation: tuple[str, str], folder: Path) -> str:
    """The path of a copy of a kernel's file with one thing changed, as KernelPlace.call takes it. kernel: its file's name without .py.
    mutation: what stands there once, and what does instead."""
    source = (Path(outrider_kernels.__path__[0]) / f"{kernel}.py").read_text(encoding="utf-8")
    assert source.count(mutation[0]) == 1
    path = folder / f"broken_{abs(hash(mutation))}.py"
    path.write_text(source.replace(*mutation), encoding="utf-8")
    return str(path)
