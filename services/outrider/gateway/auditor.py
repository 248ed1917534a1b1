"""The production audit: a share of finished answers is decoded once more, plainly, and must have the same tokens.

Knows whose turn it is: one replay at a time, only while this gateway and the verifier are idle, given up for the moment as soon as a
client's request comes. Only answers that were promised to be the target's text are compared, on verifiers of the fingerprint that gave
them. Must not know how a sample is decoded, and never logs anything of a prompt or an answer.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import secrets
from dataclasses import dataclass
from enum import StrEnum

from outrider.errors import InvalidRequest, OutriderError
from outrider.gateway.idleness import Idleness, NoLongerIdle
from outrider.gateway.replay import first_difference, plain_start
from outrider.gateway.resolved import ResolvedRequest
from outrider.gateway.sent_answer import SentAnswer, is_chosen
from outrider.gateway.verifiers import Verifier, VerifierPool
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label

_LOG = logging.getLogger(__name__)
MAX_WAITING_AUDITS = 32
MAX_REPLAYS = 8
PATIENCE_S = 600.0
REPLAY_TIMEOUT_S = 300.0
SETTLE_S = 0.5
RETRY_S = 1.0
MAX_ASKED = 4  # verifiers, whether they are idle, before the next pause


class AuditOutcome(StrEnum):
    """What became of a chosen answer; also the value of the counter's label.

    EQUAL, MISMATCH: it was compared. NOT_PROMISED: nobody promised these tokens (`fast` numerics, rejection acceptance, a failover to
    another fingerprint). DROPPED: as many wait as may. GAVE_UP: there was no idle time for it. FAILED: no replay came to its end.
    SHUTDOWN: the gateway ended first.
    """

    EQUAL = "equal"
    MISMATCH = "mismatch"
    NOT_PROMISED = "not_promised"
    DROPPED = "dropped"
    GAVE_UP = "gave_up"
    FAILED = "failed"
    SHUTDOWN = "shutdown"


@dataclass(frozen=True, slots=True)
class AuditLimits:
    """share: of finished requests, in [0, 1]. max_live: with more live requests the gateway is not idle, and with more sessions a verifier.
    max_waiting: further answers are not audited. max_replays: begun for one answer. patience_s: from its end to the end of its last
    replay, of which one may take replay_timeout_s. settle_s: idle for so long before a replay begins. retry_s: before a verifier is asked
    again."""

    share: float = 0.0
    max_live: int = 0
    max_waiting: int = MAX_WAITING_AUDITS
    max_replays: int = MAX_REPLAYS
    patience_s: float = PATIENCE_S
    replay_timeout_s: float = REPLAY_TIMEOUT_S
    settle_s: float = SETTLE_S
    retry_s: float = RETRY_S

    def check(self) -> None:
        """Raise InvalidRequest naming the argument that is wrong."""
        if not 0.0 <= self.share <= 1.0:
            raise InvalidRequest("--audit-share", f"must be in [0, 1], got {self.share}")
        if self.max_live < 0:
            raise InvalidRequest("--audit-max-live", f"must be 0 or positive, got {self.max_live}")


@dataclass(frozen=True, slots=True)
class _Audit:
    request: ResolvedRequest
    sent: SentAnswer
    expires_s: float  # on the event loop's clock


class Auditor:
    """Works from the first `offer` until `stop`; construct inside a running event loop. idleness: told of this gateway's requests."""

    def __init__(self, limits: AuditLimits, pool: VerifierPool, idleness: Idleness, metrics: LocalMetrics, model: str) -> None:
        self._limits = limits
        self._pool = pool
        self._idleness = idleness
        self._metrics = metrics
        self._model = {Label.MODEL: model}
        self._waiting: asyncio.Queue[_Audit] = asyncio.Queue(limits.max_waiting)
        self._worker: asyncio.Task[None] | None = None
        self._is_stopped = False
        self._session_prefix = f"audit-{secrets.token_hex(8)}"
        self._serials = itertools.count()
        if limits.share:
            metrics.add(names.NUM_IDENTITY_MISMATCHES, self._model, 0.0)  # an alarm needs the zero before the first

    @property
    def num_waiting(self) -> int:
        """Answers that wait for their replay."""
        return self._waiting.qsize()

    def begin(self, request_id: str) -> SentAnswer | None:
        """What to `add` the messages of this request to, None for one that is not chosen."""
        return SentAnswer() if self._limits.share and is_chosen(request_id, self._limits.share) else None

    def offer(self, request: ResolvedRequest, sent: SentAnswer) -> None:
        """A chosen answer has reached its client whole."""
        if not sent.num_tokens:
            return  # a client that resumed had it all: there is nothing that we said
        if not sent.is_exact:
            self._count(AuditOutcome.NOT_PROMISED)
        elif self._is_stopped:
            self._count(AuditOutcome.SHUTDOWN)
        elif self._waiting.full():
            self._count(AuditOutcome.DROPPED)
        else:
            self._waiting.put_nowait(_Audit(request, sent, asyncio.get_running_loop().time() + self._limits.patience_s))
            self._worker = self._worker or asyncio.create_task(self._work(), name="auditor")

    async def stop(self) -> None:
        """End the replay under way; what waits is not audited. Safe to repeat."""
        self._is_stopped = True
        if self._worker is not None:
            self._worker.cancel()
            await asyncio.gather(self._worker, return_exceptions=True)
        while not self._waiting.empty():
            self._waiting.get_nowait()
            self._count(AuditOutcome.SHUTDOWN)

    async def _work(self) -> None:
        while True:
            audit = await self._waiting.get()
            outcome = AuditOutcome.SHUTDOWN
            try:
                outcome = await self._outcome(audit)
            except Exception:  # noqa: BLE001 -- the task's edge: a bug here costs one audit, and is counted as one that failed
                _LOG.exception("the audit of request %s failed", audit.request.request_id)
                outcome = AuditOutcome.FAILED
            finally:
                self._count(outcome)

    async def _outcome(self, audit: _Audit) -> AuditOutcome:
        """Wait for idle time and replay, again while clients' requests or verifiers end it, within the audit's bounds."""
        try:
            async with asyncio.timeout_at(audit.expires_s):
                return await self._replayed(audit)
        except TimeoutError:
            return AuditOutcome.GAVE_UP

    async def _replayed(self, audit: _Audit) -> AuditOutcome:
        outcome, num_begun = AuditOutcome.GAVE_UP, 0
        while num_begun < self._limits.max_replays:
            await self._idleness.wait(self._limits.settle_s)
            verifier = await self._idle_verifier(audit.sent.fingerprint)
            if verifier is None:
                await asyncio.sleep(self._limits.retry_s)
                continue
            num_begun += 1
            try:
                return await self._compared(audit, verifier)
            except NoLongerIdle:
                outcome = AuditOutcome.GAVE_UP
            except (OutriderError, TimeoutError) as error:
                outcome = AuditOutcome.FAILED
                cause = type(error).__name__  # its sentence may quote what it was sent
                _LOG.warning("a replay of request %s at %s ended early: %s", audit.request.request_id, verifier.address, cause)
                await asyncio.sleep(self._limits.retry_s)
        return outcome

    async def _idle_verifier(self, fingerprint: str) -> Verifier | None:
        """One of this fingerprint that has hardly anything to do, other gateways' requests included."""
        for verifier in self._pool.of_fingerprint(fingerprint)[:MAX_ASKED]:
            try:
                with verifier.asked():
                    info = await verifier.get_info()
            except OutriderError as error:
                _LOG.debug("verifier %s does not say whether it is idle: %s", verifier.address, error)
                continue
            if info.live.sessions <= self._limits.max_live and info.identity.fingerprint == fingerprint:
                return verifier
        return None

    async def _compared(self, audit: _Audit, verifier: Verifier) -> AuditOutcome:
        """Every sample at this verifier, one after the other, up to the first that is another. Raises NoLongerIdle."""
        fingerprint, serial = audit.sent.fingerprint, next(self._serials)
        async with self._idleness.used(), asyncio.timeout(self._limits.replay_timeout_s):
            for index, sample in sorted(audit.sent.samples.items()):
                start = plain_start(audit.request, f"{self._session_prefix}-{serial}/{index}", index)
                position = await first_difference(verifier, start, fingerprint, sample)
                if position is not None:
                    self._report(audit.request.request_id, index, position, fingerprint, verifier)
                    return AuditOutcome.MISMATCH
        return AuditOutcome.EQUAL

    def _report(self, request_id: str, index: int, position: int, fingerprint: str, verifier: Verifier) -> None:
        """The alarm. Positions and names only: no token of anybody's answer."""
        self._metrics.add(names.NUM_IDENTITY_MISMATCHES, self._model)
        _LOG.error(
            "identity mismatch: sample %d of request %s differs from its plain replay at %s from token %d of the answer on; fingerprint %s",
            index,
            request_id,
            verifier.address,
            position,
            fingerprint,
        )

    def _count(self, outcome: AuditOutcome) -> None:
        self._metrics.add(names.NUM_IDENTITY_AUDITS, self._model | {Label.OUTCOME: outcome.value})
