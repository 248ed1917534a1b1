"""Work on a card recorded once and played again: what the host would have to launch each time is launched as one.

Played again, the work is the very same: same kernels, same addresses, same numbers from the host. Whatever differs from step to step must
be in buffers that were there when it was recorded. Must not know what the work is. Source: CUDA graphs, as torch's documentation asks for
them (a warm-up on a side stream, one memory pool for graphs of which one plays at a time).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch

WARM_UP_RUNS = 2  # the first compiles kernels and loads libraries, the second allocates as the recording will

OWN_THREAD = "thread_local"  # another engine's thread may be loading its model meanwhile


class GraphCapture(Protocol):
    """Records work. The recordings of one capture share memory: what one leaves beside its static buffers, another may overwrite."""

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """Run the work, record it, and return what plays it again in the order of the current stream."""
        ...

    @property
    def num_bytes(self) -> int:
        """Of the card's memory that recordings hold."""
        ...


class CudaGraphs:
    """GraphCapture of torch on the current device."""

    def __init__(self) -> None:
        new_pool: Any = torch.cuda.graph_pool_handle
        self._pool = new_pool()
        self._reserved_before = torch.cuda.memory_reserved()
        new_stream: Any = torch.cuda.Stream
        self._side = new_stream()  # one for all: libraries may keep a workspace for each stream that they meet

    @property
    def num_bytes(self) -> int:
        """What the allocator took since then; memory of the warm-ups that it keeps is counted too."""
        return max(0, torch.cuda.memory_reserved() - self._reserved_before)

    def capture(self, work: Callable[[], None]) -> Callable[[], None]:
        """See GraphCapture."""
        self._side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self._side):
            for _ in range(WARM_UP_RUNS):
                work()
        torch.cuda.current_stream().wait_stream(self._side)
        new_graph: Any = torch.cuda.CUDAGraph
        graph = new_graph()
        with torch.cuda.graph(graph, pool=self._pool, stream=self._side, capture_error_mode=OWN_THREAD):
            work()
        replay: Callable[[], None] = graph.replay
        return replay
