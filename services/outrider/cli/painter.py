"""Which part of a delta's text came from which token, and how to show it: drafts that matched, corrections, bonus tokens.

A delta carries text and token ids, but not where one token's text ends; the model's own tokenizer file tells, where it lies on this
machine. Without it a delta is painted as one piece. The pieces always join to exactly the delta's text. Must not know the network.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path

from rich.text import Text
from tokenizers import Tokenizer

from outrider.cli.console import Literal
from outrider.v1 import generation_pb2, sampling_pb2

CONTEXT_TOKENS = 6
STYLES: dict[int, str] = {
    sampling_pb2.TOKEN_ORIGIN_UNSPECIFIED: "",
    sampling_pb2.TOKEN_ORIGIN_ACCEPTED: "green",
    sampling_pb2.TOKEN_ORIGIN_CORRECTED: "bold red",
    sampling_pb2.TOKEN_ORIGIN_BONUS: "bold cyan",
}
NAMES: dict[int, str] = {
    sampling_pb2.TOKEN_ORIGIN_ACCEPTED: "accepted (drafted, confirmed)",
    sampling_pb2.TOKEN_ORIGIN_CORRECTED: "corrected (the target's own, in place of a wrong or missing draft)",
    sampling_pb2.TOKEN_ORIGIN_BONUS: "bonus (the target's own, after a whole draft was accepted)",
}
Decode = Callable[[Sequence[int]], str]


def local_decoder(model: str) -> Decode | None:
    """Token ids to text, from a model folder's tokenizer.json; None when it is not on this machine."""
    path = Path(model) / "tokenizer.json"
    if not path.is_file():
        return None
    tokenizer = Tokenizer.from_file(str(path))
    return lambda ids: str(tokenizer.decode(list(ids), skip_special_tokens=True))


class Painter:
    """Splits the deltas of one sample into pieces of one origin each."""

    def __init__(self, decode: Decode | None) -> None:
        self._decode = decode
        self._context: list[int] = []
        self.counts: Counter[int] = Counter()

    def pieces(self, delta: generation_pb2.Delta) -> list[tuple[str, int]]:
        """(text, origin) in order; the texts join to delta.text."""
        self.counts.update(delta.origins)
        ends = self._ends(delta)
        pieces: list[tuple[str, int]] = []
        begin = 0
        for end, origin in zip(ends, delta.origins, strict=True):
            if end > begin:
                pieces.append((delta.text[begin:end], origin))
                begin = end
        if begin < len(delta.text):
            last = delta.origins[-1] if delta.origins else sampling_pb2.TOKEN_ORIGIN_UNSPECIFIED
            pieces.append((delta.text[begin:], last))
        return pieces

    def paint(self, delta: generation_pb2.Delta) -> Literal:
        """The delta's text in the colours of its tokens."""
        return Literal(tuple((piece, STYLES.get(origin, "")) for piece, origin in self.pieces(delta)))

    def _ends(self, delta: generation_pb2.Delta) -> list[int]:
        """Where each token's text ends in delta.text, as far as it can be told."""
        ids = list(delta.token_ids)
        if self._decode is None:
            return [0] * len(delta.origins)
        before = len(self._decode(self._context))
        ends = []
        for index in range(len(delta.origins)):
            after = len(self._decode(self._context + ids[: index + 1]))
            ends.append(min(max(after - before, 0), len(delta.text)))
        self._context = (self._context + ids)[-CONTEXT_TOKENS:]
        return ends


def legend(counts: Counter[int] | None = None) -> Text:
    """What the colours mean, with how many tokens each where known."""
    text = Text()
    for origin, name in NAMES.items():
        number = "" if counts is None else f"{counts[origin]} "
        text.append("■ ", STYLES[origin]).append(f"{number}{name}  ")
    return text
