"""What the target will run on, and whether it fits. Must not import torch: card_probe.py asks, in a process that ends."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass

from outrider.errors import Unavailable
from outrider_bench.gpu.shapes import TargetShape
from outrider_bench.gpu.target_folder import GIB, child_environment

PROBE_DEADLINE_S = 180.0


@dataclass(frozen=True, slots=True)
class Card:
    """facts: a line each, for reports. free_bytes: of its memory, with nothing of ours on it. copy_bytes_per_s: read and written."""

    facts: Mapping[str, str]
    free_bytes: int
    copy_bytes_per_s: float

    def check_room(self, size: str, shape: TargetShape, cache_bytes: int) -> None:
        """Raises Unavailable with both amounts where a target with a cache of this size does not fit."""
        needed = shape.memory_bytes(cache_bytes)
        if needed > self.free_bytes:
            raise Unavailable(
                f"the target of size {size} needs up to {needed / GIB:.1f} GiB of memory (at its start a second copy checks it),"
                f" and {self.free_bytes / GIB:.1f} GiB are free; take a smaller --size; nothing ran"
            )


def find_card(device: str, asker: str = "bench gpu", instead: str = "--device cpu --size tiny runs the same code without a card") -> Card:
    """device: cuda or cpu. asker: who wants it; instead: what runs without it. Raises Unavailable where there is no such thing, saying
    what is missing."""
    command = [sys.executable, "-m", "outrider_bench.gpu.card_probe", device]
    asked = subprocess.run(command, capture_output=True, text=True, env=child_environment(1), check=False, timeout=PROBE_DEADLINE_S)
    if asked.returncode:
        raise Unavailable(f"{device} could not be asked: {(asked.stderr.strip().splitlines() or ['no reason given'])[-1]}; nothing ran")
    found = json.loads(asked.stdout.splitlines()[-1])
    if "missing" in found:
        raise Unavailable(f"{asker}: {found['missing']}; nothing ran ({instead})")
    return Card(found["facts"], found["free_bytes"], found["copy_bytes_per_s"])
