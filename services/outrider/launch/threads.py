"""How the cores of one machine are shared between a verifier and a drafter.

Two processes that compute at the same time must not have more threads than there are cores: an oversubscribed parallel region
waits at every barrier for the thread that lost its core. So the drafter's cores are set aside, and lent to the verifier for steps during
which the drafter is idle; where nothing can be lent, a policy under which the two take turns may give the verifier every core for good.
With few cores the two may as well be one process that takes turns (pair_service), which has them all for either.
Must not know torch: a plan is numbers, applied by whoever starts the processes.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, replace

from outrider_kernels.cpu_quota import cpu_quota

MAX_DRAFTER_THREADS = 4
# How long a waiting OpenMP thread spins before it sleeps (GNU's, which torch's CPU builds use). Its default outlasts a time slice: with
# other work on the cores, two threads took 2,200 ms for a forward that takes one thread 113 ms, and 135 ms with this bound.
OPENMP_SPIN_COUNT = 2000
# The same for OpenBLAS (numpy's), as a power of two of cycles: 22 is about a millisecond, so that threads stay awake within a step and from
# one to the next. Its default of 26 is a time slice and more, and a prefill (torch's threads) right after a decode step took twice as long.
OPENBLAS_SPIN_EXPONENT = 22
_TAKING_TURNS = frozenset({"plain", "lookup", "serial"})
_EITHER = "adaptive"
FEW_CORES = 2  # up to here a core of its own for the drafter costs the verifier half of what it has


@dataclass(frozen=True, slots=True)
class ThreadPlan:
    """Compute threads of each process. *_cores: cores a process is pinned to, empty for any. lent: the verifier's further threads for steps
    during which the drafter is idle."""

    verifier: int
    drafter: int
    verifier_cores: tuple[int, ...] = ()
    drafter_cores: tuple[int, ...] = ()
    lent: int = 0

    def describe(self) -> str:
        """One line for people, for example `verifier 1 thread, drafter 1 thread, 1 lent while it is idle`."""
        lent = f", {self.lent} lent while it is idle" if self.lent else ""
        return f"verifier {_threads(self.verifier, self.verifier_cores)}, drafter {_threads(self.drafter, self.drafter_cores)}{lent}"


def usable_cores() -> tuple[int, ...]:
    """Cores this process may run on, ascending (a container's or taskset's limit counts), and no more of them than a container's quota is
    enough for (`docker run --cpus`, a limit in Kubernetes)."""
    cores = tuple(sorted(os.sched_getaffinity(0)))
    quota = cpu_quota()
    return cores if quota is None else cores[: max(1, int(quota))]


def takes_turns(num_cores: int, pacing: str) -> bool:
    """Whether a policy loses nothing if verifier and drafter never compute at the same time on so many cores."""
    return pacing in _TAKING_TURNS or (pacing == _EITHER and num_cores <= FEW_CORES)


def plan_threads(num_cores: int, pacing: str, *, lends: bool = False) -> ThreadPlan:
    """Threads for a policy. lends: the drafter's cores are set aside, and lent while it is idle, whatever the policy. Without that: taking
    turns, the verifier gets every core; overlapping, the drafter's are set aside.

    `adaptive` may do either: with few cores it is set up for turns. A small draft model gains nothing from many threads, so the drafter
    gets one, or a quarter of the cores up to MAX_DRAFTER_THREADS; in one process with the verifier a large one has that one's in its turn
    (engine/round_ahead.py). Raises ValueError without a core.
    """
    if num_cores < 1:
        raise ValueError(f"num_cores must be at least 1, got {num_cores}")
    drafter = max(1, min(MAX_DRAFTER_THREADS, num_cores // 4))
    if lends and num_cores > drafter:
        return ThreadPlan(verifier=num_cores - drafter, drafter=drafter, lent=drafter)
    if takes_turns(num_cores, pacing):
        return ThreadPlan(verifier=num_cores, drafter=drafter)
    return ThreadPlan(verifier=max(1, num_cores - drafter), drafter=drafter)


def pinned(plan: ThreadPlan, cores: tuple[int, ...]) -> ThreadPlan:
    """The same plan with each process on cores of its own: the verifier on the first, the drafter on the last ones.

    Where there are too few cores for both, they overlap. Cores that are lent are the verifier's too.
    """
    drafter_cores = cores[-plan.drafter :]
    verifier_cores = dict.fromkeys((*cores[: plan.verifier], *drafter_cores[: plan.lent]))
    return replace(plan, verifier_cores=tuple(verifier_cores), drafter_cores=drafter_cores)


def thread_environment(num_threads: int) -> dict[str, str]:
    """Environment that holds every numeric library of a process to num_threads."""
    count = str(num_threads)
    return {
        "OMP_NUM_THREADS": count,
        "MKL_NUM_THREADS": count,
        "OPENBLAS_NUM_THREADS": count,
        "NUMEXPR_NUM_THREADS": count,
        "GOMP_SPINCOUNT": str(OPENMP_SPIN_COUNT),
        "OPENBLAS_THREAD_TIMEOUT": str(OPENBLAS_SPIN_EXPONENT),
        "TOKENIZERS_PARALLELISM": "false",
    }


def _threads(count: int, cores: tuple[int, ...]) -> str:
    where = f" on core {','.join(map(str, cores))}" if cores else ""
    return f"{count} thread{'' if count == 1 else 's'}{where}"
