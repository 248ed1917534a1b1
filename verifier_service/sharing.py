"""The shared n-grams of a verifier's process: made from its settings, and what its metrics say of them.

Imports the client of Redis only where one is asked for: it is an extra. Must not know sessions.
"""

from __future__ import annotations

from outrider.errors import InvalidRequest
from outrider.store.contract import NgramStore
from outrider.store.shared_ngrams import SharedNgrams
from outrider.telemetry import names
from outrider.telemetry.local_metrics import LocalMetrics
from outrider.telemetry.names import Label
from verifier_service.sharing_settings import SharingSettings

_LABELS = {Label.SERVICE: "verifier"}


def open_sharing(settings: SharingSettings) -> SharedNgrams | None:
    """None where nothing is shared. Does not connect. Raises InvalidRequest for a Redis whose client is not installed, or a bad URL."""
    if not settings.is_on:
        return None
    return SharedNgrams(_redis_store(settings.redis_url) if settings.redis_url else None)


def _redis_store(url: str) -> NgramStore:
    try:
        from outrider.store.redis_store import RedisNgrams
    except ModuleNotFoundError as error:
        raise InvalidRequest("--redis-url", "needs the package redis: pip install 'outrider[redis]'") from error
    try:
        return RedisNgrams(url)
    except ValueError as error:
        raise InvalidRequest("--redis-url", str(error)) from error


def refresh_sharing(metrics: LocalMetrics, shared: SharedNgrams) -> None:
    """Set what is read at a scrape."""
    for outcome, num in (("hit", shared.found.num_hits), ("miss", shared.found.num_misses)):
        metrics.raise_to(names.NUM_SHARED_NGRAM_LOOKUPS, _LABELS | {Label.OUTCOME: outcome}, num)
    exchange = shared.exchange
    if exchange is None:
        return
    for outcome, num in (("stored", shared.num_published), ("dropped", shared.num_dropped)):
        metrics.raise_to(names.NUM_SHARED_NGRAM_PUBLICATIONS, _LABELS | {Label.OUTCOME: outcome}, num)
    counts = exchange.store.counts
    errors = {"unreachable": counts.num_failures, "refused": counts.num_refused, "invalid": counts.num_invalid + exchange.num_invalid}
    for cause, num in errors.items():
        metrics.raise_to(names.NUM_SHARED_NGRAM_ERRORS, _LABELS | {Label.CAUSE: cause}, num)
    metrics.set(names.SHARED_NGRAMS_CONNECTED, _LABELS, counts.is_connected)
