"""Every name of a span, an attribute or a metric, in one place, because dashboards break silently when one is misspelt.

Where OpenTelemetry's GenAI conventions have a name it is used (`gen_ai.*`, open-telemetry/semantic-conventions-genai, status
Development); ours are `outrider.*`. Speculation counters keep the shape of vLLM's metrics, so that its dashboards and the formula
1 + accepted / drafts translate directly. Contents of prompts and answers have no name here: they are never recorded.
Must not know who exports.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, StrEnum


class Span(StrEnum):
    """Names of spans; nothing makes one yet (docs/architecture.md, section 2c). GENERATE is completed with the model's name:
    `{operation} {model}`."""

    GENERATE = "text_completion"
    CHAT = "chat"
    TOKENIZE = "outrider.tokenize"
    DECODE = "outrider.decode"
    ROUND = "outrider.round"
    STEP = "outrider.step"
    DRAFT = "outrider.draft"
    RECONCILE = "outrider.reconcile"


class Attribute(StrEnum):
    """Names of span attributes, for when there are spans; units last."""

    OPERATION_NAME = "gen_ai.operation.name"
    PROVIDER_NAME = "gen_ai.provider.name"
    REQUEST_MODEL = "gen_ai.request.model"
    REQUEST_MAX_TOKENS = "gen_ai.request.max_tokens"
    REQUEST_TEMPERATURE = "gen_ai.request.temperature"
    REQUEST_TOP_P = "gen_ai.request.top_p"
    REQUEST_TOP_K = "gen_ai.request.top_k"
    REQUEST_SEED = "gen_ai.request.seed"
    REQUEST_CHOICE_COUNT = "gen_ai.request.choice.count"
    REQUEST_FREQUENCY_PENALTY = "gen_ai.request.frequency_penalty"
    REQUEST_PRESENCE_PENALTY = "gen_ai.request.presence_penalty"
    REQUEST_STREAM = "gen_ai.request.stream"
    RESPONSE_ID = "gen_ai.response.id"
    RESPONSE_MODEL = "gen_ai.response.model"
    RESPONSE_FINISH_REASONS = "gen_ai.response.finish_reasons"
    USAGE_INPUT_TOKENS = "gen_ai.usage.input_tokens"
    USAGE_OUTPUT_TOKENS = "gen_ai.usage.output_tokens"
    ERROR_TYPE = "error.type"

    SESSION_ID = "outrider.session.id"
    SESSION_INCARNATION = "outrider.session.incarnation"
    FINGERPRINT = "outrider.numerics.fingerprint"
    PACING = "outrider.pacing"
    ACCEPTANCE = "outrider.acceptance"
    ROUND_INDEX = "outrider.round.index"
    ROUND_BASE_LEN = "outrider.round.base_len"
    ROUND_DRAFTED = "outrider.round.drafted"
    ROUND_ACCEPTED = "outrider.round.accepted"
    ROUND_OVERLAP_MS = "outrider.round.overlap_ms"
    ROUND_WIRE_MS = "outrider.round.wire_ms"
    ROUND_RECONCILE_US = "outrider.round.reconcile_us"
    STEP_ROWS = "outrider.step.rows"
    STEP_SESSIONS = "outrider.step.sessions"
    DRAFTER_ID = "outrider.drafter.id"
    DRAFTER_KIND = "outrider.drafter.kind"
    ROUTE_MODE = "outrider.route.mode"
    ROUTE_REASON = "outrider.route.reason"
    ROUTE_LOSSLESS = "outrider.route.lossless"
    FALLBACK_CAUSE = "outrider.fallback.cause"


PROVIDER = "outrider"


class Label(StrEnum):
    """Names of metric labels; the values of each are few."""

    CAUSE = "cause"
    DRAFTER = "drafter"
    MODEL = "model"
    OUTCOME = "outcome"
    PACING = "pacing"
    POSITION = "position"
    ROLE = "role"
    SERVICE = "service"
    STATUS = "status"

    __hash__ = str.__hash__  # an enum's own is a function of Python's, and labels are looked up for every number that is counted


class MetricKind(Enum):
    """COUNTER only grows, GAUGE is the present value, HISTOGRAM counts observations by bucket."""

    COUNTER = 1
    GAUGE = 2
    HISTOGRAM = 3


@dataclass(frozen=True, slots=True, eq=False)  # each is one object: told apart by that, which costs nothing
class Metric:
    """One metric. unit: as in the name, empty for plain counts. buckets: ascending upper bounds of a histogram, +inf not listed."""

    name: str
    kind: MetricKind
    help: str
    labels: tuple[Label, ...] = ()
    unit: str = ""
    buckets: tuple[float, ...] = ()


# The conventions' buckets start at 10 ms per token; with speculation most tokens come faster than that.
_TOKEN_SECONDS = (0.0005, 0.001, 0.002, 0.003, 0.005, 0.0075, 0.01, 0.025, 0.05, 0.075, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.75, 1.0, 2.5)
_FIRST_TOKEN_SECONDS = (0.001, 0.005, 0.01, 0.02, 0.04, 0.06, 0.08, 0.1, 0.25, 0.5, 0.75, 1.0, 2.5, 5.0, 7.5, 10.0)
_REQUEST_SECONDS = (0.01, 0.02, 0.04, 0.08, 0.16, 0.32, 0.64, 1.28, 2.56, 5.12, 10.24, 20.48, 40.96, 81.92)
_QUEUE_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
_SPECULATION = (Label.MODEL, Label.PACING)

REQUEST_SECONDS = Metric(
    "gen_ai_server_request_duration_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its last message.",
    (Label.MODEL, Label.STATUS),
    "seconds",
    _REQUEST_SECONDS,
)
FIRST_TOKEN_SECONDS = Metric(
    "gen_ai_server_time_to_first_token_seconds",
    MetricKind.HISTOGRAM,
    "Time from a request's arrival to its first token.",
    (Label.MODEL,),
    "seconds",
    _FIRST_TOKEN_SECONDS,
)
OUTPUT_TOKEN_SECONDS = Metric(
    "gen_ai_server_time_per_output_token_seconds",
    MetricKind.HISTOGRAM,
    "Time per token after the first.",
    (Label.MODEL,),
    "seconds",
    _TOKEN_SECONDS,
)
NUM_DRAFTS = Metric(
    "outrider_spec_decode_num_drafts_total", MetricKind.COUNTER, "Rounds that verified at least one guessed token.", _SPECULATION
)
NUM_DRAFT_TOKENS = Metric("outrider_spec_decode_num_draft_tokens_total", MetricKind.COUNTER, "Guessed tokens verified.", _SPECULATION)
NUM_ACCEPTED_TOKENS = Metric("outrider_spec_decode_num_accepted_tokens_total", MetricKind.COUNTER, "Guessed tokens accepted.", _SPECULATION)
NUM_ACCEPTED_TOKENS_PER_POS = Metric(
    "outrider_spec_decode_num_accepted_tokens_per_pos_total",
    MetricKind.COUNTER,
    "Guessed tokens accepted, by depth below the committed prefix (0-based).",
    (*_SPECULATION, Label.POSITION),
)
NUM_EMITTED_TOKENS = Metric("outrider_spec_decode_num_emitted_tokens_total", MetricKind.COUNTER, "Committed tokens.", _SPECULATION)
NUM_ROUNDS = Metric("outrider_spec_decode_num_rounds_total", MetricKind.COUNTER, "Verify rounds, with or without drafts.", _SPECULATION)
NUM_LOOKED_UP_TOKENS = Metric(
    "outrider_spec_decode_num_looked_up_tokens_total",
    MetricKind.COUNTER,
    "Of the guessed tokens verified, those looked up in the sample's own text or in other answers.",
    _SPECULATION,
)
NUM_LOOKED_UP_ACCEPTED_TOKENS = Metric(
    "outrider_spec_decode_num_looked_up_accepted_tokens_total", MetricKind.COUNTER, "Of the looked-up tokens, those accepted.", _SPECULATION
)
NUM_SHARED_NGRAM_TOKENS = Metric(
    "outrider_shared_ngram_tokens_total",
    MetricKind.COUNTER,
    "Of the looked-up tokens, those from other answers, counted when their sample ends.",
    (Label.MODEL,),
)
NUM_SHARED_NGRAM_ACCEPTED_TOKENS = Metric(
    "outrider_shared_ngram_accepted_tokens_total", MetricKind.COUNTER, "Of the tokens from other answers, those accepted.", (Label.MODEL,)
)
NUM_SHARED_NGRAM_LOOKUPS = Metric(
    "outrider_shared_ngram_lookups_total",
    MetricKind.COUNTER,
    "Ends of texts looked for in this process' memory of other answers, by whether they were found (hit, miss).",
    (Label.SERVICE, Label.OUTCOME),
)
NUM_SHARED_NGRAM_ERRORS = Metric(
    "outrider_shared_ngram_errors_total",
    MetricKind.COUNTER,
    "Attempts that found no Redis (unreachable), entries that it would not store or look for (refused), values that were none (invalid).",
    (Label.SERVICE, Label.CAUSE),
)
NUM_SHARED_NGRAM_PUBLICATIONS = Metric(
    "outrider_shared_ngram_publications_total",
    MetricKind.COUNTER,
    "Whole answers that were to be published through Redis, by what came of it (stored, dropped).",
    (Label.SERVICE, Label.OUTCOME),
)
SHARED_NGRAMS_CONNECTED = Metric(
    "outrider_shared_ngrams_connected",
    MetricKind.GAUGE,
    "1 while Redis answers, through which n-grams are shared, else 0; looked at every few seconds at least.",
    (Label.SERVICE,),
)
NUM_DRAFTER_LOSSES = Metric(
    "outrider_num_drafter_losses_total",
    MetricKind.COUNTER,
    "Times a sample lost a drafter or gave it up, by cause (gone, closed, late, protocol, acceptance).",
    (*_SPECULATION, Label.CAUSE),
)
DRAFT_SECONDS = Metric(
    "outrider_draft_seconds_total", MetricKind.COUNTER, "Time drafters spent for verified samples.", _SPECULATION, "seconds"
)
OVERLAPPED_DRAFT_SECONDS = Metric(
    "outrider_overlapped_draft_seconds_total",
    MetricKind.COUNTER,
    "Part of the drafting time that ran while a round of the same sample was being verified.",
    _SPECULATION,
    "seconds",
)
VERIFY_SECONDS = Metric(
    "outrider_verify_seconds_total", MetricKind.COUNTER, "Time of steps, counted once for each sample in them.", _SPECULATION, "seconds"
)
RECONCILE_SECONDS = Metric(
    "outrider_reconcile_seconds_total",
    MetricKind.COUNTER,
    "Time spent aligning tails with the truth and moving the trees of guesses along it.",
    _SPECULATION,
    "seconds",
)
SESSION_SECONDS = Metric(
    "outrider_session_seconds_total",
    MetricKind.COUNTER,
    "Time of the sessions' own steps in the verifier, what they reconcile left out.",
    _SPECULATION,
    "seconds",
)
PLAN_SECONDS = Metric(
    "outrider_plan_seconds_total",
    MetricKind.COUNTER,
    "Time the verifier spent deciding when steps begin and what they hold, shared by the samples in question.",
    _SPECULATION,
    "seconds",
)
DRAFT_WAIT_SECONDS = Metric(
    "outrider_draft_wait_seconds_total", MetricKind.COUNTER, "Time samples were ready and waited for drafts.", _SPECULATION, "seconds"
)
NUM_STEPS = Metric("outrider_num_steps_total", MetricKind.COUNTER, "Steps of the target.", (Label.MODEL,))
NUM_LENT_STEPS = Metric(
    "outrider_num_lent_steps_total", MetricKind.COUNTER, "Of the steps, those that used an idle drafter's cores too.", (Label.MODEL,)
)
STEP_SECONDS = Metric(
    "outrider_step_seconds_total",
    MetricKind.COUNTER,
    "Time in steps of the target; its rate is the share of time in which the verifier computes.",
    (Label.MODEL,),
    "seconds",
)
QUEUE_SECONDS = Metric(
    "outrider_request_queue_time_seconds",
    MetricKind.HISTOGRAM,
    "Time from a sample's arrival at the verifier to its first step.",
    (Label.MODEL,),
    "seconds",
    _QUEUE_SECONDS,
)
NUM_REFUSED_REQUESTS = Metric(
    "outrider_num_refused_requests_total",
    MetricKind.COUNTER,
    "Samples that a verifier did not take, by the status they were refused with.",
    (Label.MODEL, Label.STATUS),
)
NUM_PARKED_SESSIONS = Metric(
    "outrider_num_parked_sessions_total",
    MetricKind.COUNTER,
    "Times that a sample gave its KV blocks up to an older one, to be read anew once there was room.",
    (Label.MODEL,),
)
NUM_DRAFT_DEADLINE_MISSES = Metric(
    "outrider_num_draft_deadline_misses_total",
    MetricKind.COUNTER,
    "Rounds that began past their deadline without what this drafter owed, counted when their sample ends.",
    (Label.DRAFTER,),
)
NUM_JUDGED_TOKENS = Metric(
    "outrider_num_judged_tokens_total",
    MetricKind.COUNTER,
    "Guesses of this drafter that the truth proved right or wrong, verified or overtaken, counted when their sample ends.",
    (Label.DRAFTER,),
)
NUM_RIGHT_TOKENS = Metric("outrider_num_right_tokens_total", MetricKind.COUNTER, "Of the judged guesses, the right ones.", (Label.DRAFTER,))
NUM_DRAFTER_DROPS = Metric(
    "outrider_num_drafter_drops_total",
    MetricKind.COUNTER,
    "Times a drafter was left out of new samples for a while.",
    (Label.DRAFTER, Label.CAUSE),
)
NUM_GUESSED_TOKENS = Metric("outrider_num_guessed_tokens_total", MetricKind.COUNTER, "Tokens a drafter has guessed.", (Label.MODEL,))
GUESSING_SECONDS = Metric(
    "outrider_guessing_seconds_total", MetricKind.COUNTER, "Time a drafter spent guessing, of all its samples.", (Label.MODEL,), "seconds"
)
GUESSED_TOKEN_SECONDS = Metric(
    "outrider_guessed_token_seconds",
    MetricKind.GAUGE,
    "Time of a guessed token of late, as a sample sees it; 0 while it is not measured.",
    (Label.MODEL,),
    "seconds",
)
NUM_PLACEMENTS = Metric(
    "outrider_num_placements_total",
    MetricKind.COUNTER,
    "Requests for which a place was asked, by what came of it.",
    (Label.SERVICE, Label.OUTCOME),
)
NUM_FAILOVERS = Metric(
    "outrider_num_failovers_total",
    MetricKind.COUNTER,
    "Times a sample went on at another verifier, by how the one before was lost.",
    (Label.MODEL, Label.CAUSE),
)
NUM_FAILED_FAILOVERS = Metric(
    "outrider_num_failed_failovers_total",
    MetricKind.COUNTER,
    "Samples that failed because their verifier was lost: nobody took them over, they may not move, or they moved too often.",
    (Label.MODEL, Label.CAUSE),
)
FAILOVER_SECONDS = Metric(
    "outrider_failover_seconds_total",
    MetricKind.COUNTER,
    "Time from a verifier's loss being found to the sample's next stream, without what reading its prefix again takes.",
    (Label.MODEL, Label.CAUSE),
    "seconds",
)
NUM_IDENTITY_MISMATCHES = Metric(
    "outrider_identity_mismatch_total",
    MetricKind.COUNTER,
    "Audited answers that differ from their plain replay. Anything but zero is a fault of the service.",
    (Label.MODEL,),
)
NUM_IDENTITY_AUDITS = Metric(
    "outrider_identity_audits_total",
    MetricKind.COUNTER,
    "Finished requests that were chosen for an audit, by what became of it.",
    (Label.MODEL, Label.OUTCOME),
)
LIVE_SESSIONS = Metric("outrider_live_sessions", MetricKind.GAUGE, "Sessions held now.", (Label.SERVICE,))
LIVE_STREAMS = Metric("outrider_live_streams", MetricKind.GAUGE, "Streams open now.", (Label.SERVICE,))
IDENTITY_AUDITS_WAITING = Metric(
    "outrider_identity_audits_waiting", MetricKind.GAUGE, "Finished requests that wait for their replay now.", (Label.SERVICE,)
)
REQUESTS_WAITING = Metric(
    "outrider_requests_waiting", MetricKind.GAUGE, "Samples that have arrived and wait for their first step now.", (Label.SERVICE,)
)
KV_BLOCKS_IN_USE = Metric("outrider_kv_blocks_in_use", MetricKind.GAUGE, "KV blocks held now.", (Label.SERVICE,))
KV_BLOCKS_FREE = Metric("outrider_kv_blocks_free", MetricKind.GAUGE, "KV blocks that are free now.", (Label.SERVICE,))
LIVE_REPLICAS = Metric("outrider_live_replicas", MetricKind.GAUGE, "Replicas in lease now.", (Label.ROLE,))
NUM_DROPPED_SERIES = Metric(
    "outrider_num_dropped_series_total", MetricKind.COUNTER, "Counts that were lost because the process has as many series as it may have."
)

METRICS: tuple[Metric, ...] = tuple(value for value in list(globals().values()) if isinstance(value, Metric))
