"""The operating errors Outrider raises on purpose, and nothing about how they travel.

    OutriderError
      InvalidRequest      a field of the caller's is wrong; retrying unchanged cannot help     -> INVALID_ARGUMENT
      UnsupportedParameter(InvalidRequest)  known to others, not to us: refused, never ignored -> INVALID_ARGUMENT
      Overloaded          no room now (sessions, KV blocks, queue); retry later                -> RESOURCE_EXHAUSTED
      DoesNotFit          can never fit this deployment's limits                               -> INVALID_ARGUMENT
      UnknownSession      the id names nothing alive                                           -> NOT_FOUND
      AlreadyExists       the id names something alive                                         -> ALREADY_EXISTS
      IncompatiblePair    drafter and verifier cannot work together                            -> FAILED_PRECONDITION
      Superseded          a newer incarnation has taken the caller's place: it must end        -> FAILED_PRECONDITION
      ModelRefused        the load-time probe or the loader refuses this model                 -> FAILED_PRECONDITION
      ProtocolViolation   a peer sent a frame that cannot be; ends its own session only        -> INVALID_ARGUMENT
      Unavailable         the service drains or a needed peer is gone                          -> UNAVAILABLE
      Cancelled           the caller ended the request                                         -> CANCELLED

Two more exist only where a call was made, in `outrider.rpc.status`: DeadlinePassed(Cancelled) -> DEADLINE_EXCEEDED, and
RemoteFailure, a peer's own fault -> INTERNAL.
Programmer errors are asserts, not these. Must not know grpc: `outrider.rpc` owns the mapping to status codes.
"""

from __future__ import annotations


class OutriderError(Exception):
    """Base of all operating errors; `str()` is a sentence fit for the caller."""


class InvalidRequest(OutriderError):
    """A named field is out of range, malformed or contradictory."""

    def __init__(self, field: str, problem: str) -> None:
        super().__init__(f"{field}: {problem}")
        self.field = field
        self.problem = problem

    def __reduce__(self) -> tuple[type[InvalidRequest], tuple[str, str]]:
        """For who raises it in another process and is heard here: an exception is made anew of its sentence otherwise."""
        return type(self), (self.field, self.problem)


class UnsupportedParameter(InvalidRequest):
    """A parameter that other servers know and this one does not; never silently ignored."""


class DoesNotFit(InvalidRequest):
    """A request that no retry can make fit: longer than the context, or than every KV block there is."""


class Overloaded(OutriderError):
    """No room at the moment; the same request may succeed later. retry_after_s: an estimate of when; None: nobody knows."""

    def __init__(self, problem: str, retry_after_s: float | None = None) -> None:
        super().__init__(problem)
        self.retry_after_s = retry_after_s


class UnknownSession(OutriderError):
    """The session or request id names nothing alive here."""


class AlreadyExists(OutriderError):
    """A live session or request already has this id."""


class IncompatiblePair(OutriderError):
    """Drafter and verifier disagree about something they must share; the sentence says which side has what."""


class Superseded(OutriderError):
    """A newer incarnation has taken the caller's place: what it holds is void, and it must end."""


class ModelRefused(OutriderError):
    """The model cannot be served exactly; the sentence says why and what to do."""


class ProtocolViolation(OutriderError):
    """A peer's frame breaks the draft protocol; it costs that session, never its neighbours."""


class Unavailable(OutriderError):
    """The service is draining or a peer that this request cannot do without is gone."""


class Cancelled(OutriderError):
    """The caller went away, or the request's deadline passed."""
