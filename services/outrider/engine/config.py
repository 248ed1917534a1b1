"""How to load an engine: which model, which numbers, which sizes. Values only.

Must not know torch or transformers, so that every process can parse its settings before importing either.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from outrider.errors import InvalidRequest
from outrider.types.identity import Numerics

INT8_REMEDY = "leave `--engine` at auto for a model of the Llama, Mistral, Qwen2 or Qwen3 family, or ask for `--weights full`"
SHORTLIST_REFUSAL = "only our own compiled code computes a head in part, on a CPU, for models that it serves; leave it out, or say off"
DRAFT_WEIGHTS_HELP = (
    "what is kept of the draft's matrices: full, in the dtype; int8, the layers' rounded; auto: the head's too, and what they are "
    "multiplied with in 16 bits, where this processor multiplies such numbers quicker than floats (AVX512_VNNI, or AVX2 and no AVX512), "
    "else full; it changes no answer (%(default)s)"
)
MAX_CACHE_SIZE = 2**31 - 1  # blocks, or MiB: what is counted in bytes then still fits 64 bits
AUTO_SHORTLIST = -1
SHORTLIST_IDS = 32768  # auto: a fifth to a quarter of the vocabularies that are large
LEAST_SHORTLIST_IDS = 1024  # with fewer most guesses would be missed
SHORTLIST_HELP = (
    "ids that the draft's guesses are chosen among, those that were read most recently: a number of them, off (all ids), or auto, "
    f"{SHORTLIST_IDS:,} where the vocabulary has twice as many and the model is computed by our own code on a CPU; it changes no answer, "
    "and a guess takes as much less as its head is larger than the rest (auto)"
)
NO_CARD_GRAPHS_HELP = "on a card, launch every step operation by operation; otherwise small steps are recorded at start and played"
WEIGHTS_HELP = (
    "what is kept of the layers' matrices: full, in the dtype; int8, a quarter of float32's memory, rounded, so that it is another model "
    "with answers and a fingerprint of its own (lean engine only) (%(default)s)"
)


def shortlist_from(flag: str, text: str) -> int:
    """EngineConfig.shortlist of a command line: auto, off or a number. Raises InvalidRequest, which names the flag."""
    named = {"auto": AUTO_SHORTLIST, "off": 0}
    if text in named:
        return named[text]
    if not text.isdecimal() or int(text) < LEAST_SHORTLIST_IDS:
        raise InvalidRequest(flag, f"must be auto, off, or a number of ids of at least {LEAST_SHORTLIST_IDS}, got {text!r}")
    return int(text)


class EngineKind(Enum):
    """TRANSFORMERS: any admitted model. LEAN: own forward of the Llama family. AUTO: lean where it can, else transformers."""

    AUTO = "auto"
    TRANSFORMERS = "transformers"
    LEAN = "lean"


class DType(Enum):
    """Type of weights, activations and cache; logits and picks are fp32 always.

    BFLOAT16 on a processor that multiplies such numbers itself (AVX512_BF16; lean engine, full weights): weights, and what they are
    multiplied with, are rounded to it; sums, norms, attention and the cache are fp32. Where it multiplies float16 numbers and no tiles
    (AVX512_FP16, no AMX_BF16), rows and weights are rounded to those instead, which is nearer; bfloat16 weights stay what they are. One
    without either that has AVX512_VNNI, or AVX2 and no 512 bits, has whole numbers of 16 bits instead, by columns and by blocks of a row,
    which is nearer as well.
    """

    FLOAT32 = "float32"
    BFLOAT16 = "bfloat16"
    FLOAT16 = "float16"


class WeightFormat(Enum):
    """What is kept of the layers' matrices. FULL: their numbers, in the dtype. INT8: rounded to int8, with a scale per output channel.

    QUICK: for answers that are guesses, what makes them quickest: where the processor multiplies bytes itself (AVX512_VNNI), or whole
    numbers quicker than floats (AVX2 and no AVX512), and there is a compiler for the lean engine's products, int8 of every matrix, the
    head's too, times rows that are rounded to 16 bits; FULL elsewhere.
    """

    FULL = "full"
    INT8 = "int8"
    QUICK = "auto"


@dataclass(frozen=True, slots=True)
class InvariantSizes:
    """Sizes that fix the order of every sum in `invariant` numerics; all but group_blocks multiples of 16, that a power of two.

    rows: rows of every matrix product. block_len: positions of a shared attention block. max_tree_depth: levels of a tree that the
    engine accepts in `invariant`; a deeper tree is InvalidRequest. group_blocks: blocks added up at once.
    """

    rows: int = 16
    block_len: int = 32
    max_tree_depth: int = 32
    group_blocks: int = 16


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """model: a path or a hub name. kv_budget_mib: bytes for the cache when num_blocks is 0 (derived), else num_blocks rules.

    block_len: positions per KV block, a multiple of 16. max_rows: rows of one step. max_context: 0 takes the model's own. spare_len: tree
    rows beside which a text as long as the context has to fit the cache, else the context is cut; None: it stays as it is, and what does
    not fit is refused when it comes.
    array_rows: steps of at most this many rows run on numpy where the model has that way (`fast`, fp32, CPU); 0 never.
    thin_products: where a C compiler is found, all steps of fp32 on a CPU run on compiled code instead (array_rows 0: none does);
    where the processor has AVX512_BF16, AVX512_VNNI, or AVX2 and no 512 bits, those of bfloat16 too.
    thin_rows: that go through them at a time, at most max_rows; more of a step go in parts, each of which reads all weights.
    card_graphs: on a card, small steps of the lean engine in `fast` numerics are recorded at load time and played from then on.
    prefix_cache: sequences of one tenant share the KV of equal prefixes, and it stays until its blocks are needed.
    weights: int8 is for the lean engine, and makes another model of the checkpoint: another fingerprint, and its own plain answers; so does
    `auto` where it does not come to full.
    shortlist: for guesses, how many ids at most they are chosen among, 0: all; AUTO_SHORTLIST: SHORTLIST_IDS where a head of at least twice
    as many is computed by thin products, else all.
    num_threads: torch's intra-op threads for the calling thread; 0 leaves torch's setting, unless a container's quota is for fewer.
    lent_threads: further ones, for steps whose plan says that somebody else's cores are at hand. probe: check the model at load time.
    """

    model: str
    kind: EngineKind = EngineKind.AUTO
    dtype: DType = DType.FLOAT32
    numerics: Numerics = Numerics.FAST
    num_threads: int = 0
    lent_threads: int = 0
    num_blocks: int = 0
    kv_budget_mib: int = 256
    block_len: int = 32
    max_rows: int = 512
    array_rows: int = 64
    thin_rows: int = 256
    thin_products: bool = True
    max_context: int = 0
    spare_len: int | None = None
    device: str = "cpu"
    card_graphs: bool = True
    trust_remote_code: bool = False
    revision: str = ""
    probe: bool = True
    prefix_cache: bool = True
    weights: WeightFormat = WeightFormat.FULL
    shortlist: int = 0
    invariant: InvariantSizes = field(default_factory=InvariantSizes)

    def check(self) -> None:
        """Raise InvalidRequest naming the first field that cannot be."""
        if not self.model:
            raise InvalidRequest("engine.model", "must be a path or a hub name")
        if self.weights is WeightFormat.INT8 and self.kind is EngineKind.TRANSFORMERS:
            raise InvalidRequest("engine.weights", f"int8 is for the lean engine, not for transformers; {INT8_REMEDY}")
        if self.shortlist != AUTO_SHORTLIST and 0 != self.shortlist < LEAST_SHORTLIST_IDS:
            raise InvalidRequest("engine.shortlist", f"must be 0 (all ids) or at least {LEAST_SHORTLIST_IDS}, got {self.shortlist}")
        if self.shortlist > 0 and self.kind is EngineKind.TRANSFORMERS:
            raise InvalidRequest("engine.shortlist", SHORTLIST_REFUSAL)
        if self.block_len <= 0 or self.block_len % 16:
            raise InvalidRequest("engine.block_len", f"must be a positive multiple of 16, got {self.block_len}")
        for name in ("max_rows", "thin_rows"):
            if getattr(self, name) <= 0:
                raise InvalidRequest(f"engine.{name}", f"must be positive, got {getattr(self, name)}")
        for name in ("rows", "block_len", "max_tree_depth"):
            size = getattr(self.invariant, name)
            if size <= 0 or size % 16:
                raise InvalidRequest(f"engine.invariant.{name}", f"must be a positive multiple of 16, got {size}")
        if self.invariant.group_blocks <= 0 or self.invariant.group_blocks.bit_count() != 1:
            raise InvalidRequest("engine.invariant.group_blocks", f"must be a power of two, got {self.invariant.group_blocks}")
        for name in ("num_threads", "lent_threads", "max_context", "array_rows"):
            if getattr(self, name) < 0:
                raise InvalidRequest(f"engine.{name}", f"must be 0 or positive, got {getattr(self, name)}")
        if self.num_blocks < 0 or self.kv_budget_mib <= 0:
            raise InvalidRequest("engine.num_blocks", "the cache needs a size: num_blocks > 0 or kv_budget_mib > 0")
        for name in ("num_blocks", "kv_budget_mib"):
            if getattr(self, name) > MAX_CACHE_SIZE:
                raise InvalidRequest(f"engine.{name}", f"must be at most {MAX_CACHE_SIZE}, got {getattr(self, name)}")
