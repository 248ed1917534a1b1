"""The training text as arrays of token ids, one pair of files for each kind of document.

Knows how documents of each kind are written, rendered and stored; must not know models or batches.
Files: `<kind>.ids` uint16 tokens, `<kind>.parts` uint8 (1 where the token is the assistant's and, in a drill, follows from the line),
`<kind>.ends` int64 end offset of each document. Built once, then memory-mapped.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from random import Random

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer

from outrider_models.chat import ASSISTANT, BOS, END, USER
from outrider_models.drills import write_drill
from outrider_models.echoes import write_echo
from outrider_models.tasks import make_task

CORPUS_SEED = 20_26
DOCUMENT_KINDS = ("arithmetic", "drill", "echo", "copying", "prose")
_TWO_TURN_SHARE = 0.06
_ENCODE_BATCH = 2000


@dataclass(frozen=True, slots=True)
class DocumentSet:
    """All documents of one kind, memory-mapped."""

    ids: npt.NDArray[np.uint16]  # [num_tokens]
    parts: npt.NDArray[np.uint8]  # [num_tokens], 1 = learn fully, 0 = the user's part
    ends: npt.NDArray[np.int64]  # [num_documents]

    def document(self, index: int) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8]]:
        """Tokens and parts of one document."""
        begin = int(self.ends[index - 1]) if index else 0
        end = int(self.ends[index])
        return self.ids[begin:end], self.parts[begin:end]

    @property
    def num_documents(self) -> int:
        """How many documents there are."""
        return len(self.ends)


def write_documents(kind: str, num: int, seed: int) -> Iterator[str]:
    """`num` rendered training documents of `kind`; never uses a held-out name or template."""
    random = Random(f"outrider-corpus/{kind}/{seed}")
    for _ in range(num):
        if kind == "drill":
            yield f"{BOS}{ASSISTANT}{write_drill(random, random.randint(6, 16))}{END}"
        elif kind == "echo":
            echoes = (write_echo(random) for _ in range(random.randint(3, 8)))
            yield BOS + "".join(f"{USER}{request}{ASSISTANT}{answer}{END}" for request, answer in echoes)
        else:
            turns = 2 if random.random() < _TWO_TURN_SHARE else 1
            yield BOS + "".join(_turn(kind, random) for _ in range(turns))


def _turn(kind: str, random: Random) -> str:
    task = make_task(kind, random, held_out=False)
    return f"{USER}{task.prompt}{ASSISTANT}{task.reference}{END}"


def build_document_set(kind: str, num: int, seed: int, tokenizer: Tokenizer, folder: Path) -> None:
    """Write and tokenise `num` documents; the files appear only when complete."""
    folder.mkdir(parents=True, exist_ok=True)
    ids, parts, lengths = _encode(write_documents(kind, num, seed), tokenizer)
    for suffix, array in (("ids", ids), ("parts", parts), ("ends", np.cumsum(lengths, dtype=np.int64))):
        partial = folder / f"{kind}.{suffix}.partial"
        array.tofile(partial)
        partial.rename(folder / f"{kind}.{suffix}")


def open_document_set(kind: str, folder: Path) -> DocumentSet:
    """Memory-map one kind. Raises FileNotFoundError when the corpus was not built."""
    return DocumentSet(
        np.memmap(folder / f"{kind}.ids", np.uint16, "r"),
        np.memmap(folder / f"{kind}.parts", np.uint8, "r"),
        np.fromfile(folder / f"{kind}.ends", np.int64),
    )


def _encode(documents: Iterator[str], tokenizer: Tokenizer) -> tuple[npt.NDArray[np.uint16], npt.NDArray[np.uint8], list[int]]:
    user, assistant = tokenizer.token_to_id(USER), tokenizer.token_to_id(ASSISTANT)
    assert user is not None, f"the tokenizer has no {USER}"
    assert assistant is not None, f"the tokenizer has no {ASSISTANT}"
    line_end, equals = (tokenizer.encode(text, add_special_tokens=False).ids[-1] for text in ("1\n", "1 = "))
    marks = _Marks(user, assistant, line_end, equals)
    ids: list[npt.NDArray[np.uint16]] = []
    parts: list[npt.NDArray[np.uint8]] = []
    batch: list[str] = []
    for document in documents:
        batch.append(document)
        if len(batch) == _ENCODE_BATCH:
            _encode_batch(tokenizer, batch, marks, ids, parts)
            batch = []
    _encode_batch(tokenizer, batch, marks, ids, parts)
    return np.concatenate(ids), np.concatenate(parts), [len(document) for document in ids]


@dataclass(frozen=True, slots=True)
class _Marks:
    """Token ids that tell which part a token belongs to."""

    user: int
    assistant: int
    line_end: int
    equals: int


def _encode_batch(
    tokenizer: Tokenizer, batch: list[str], marks: _Marks, ids: list[npt.NDArray[np.uint16]], parts: list[npt.NDArray[np.uint8]]
) -> None:
    for encoding in tokenizer.encode_batch_fast(batch, add_special_tokens=False):
        tokens = np.array(encoding.ids, np.uint16)
        ids.append(tokens)
        parts.append(_own_part(tokens, marks) if marks.user in encoding.ids else _after_equals(tokens, marks))


def _own_part(tokens: npt.NDArray[np.uint16], marks: _Marks) -> npt.NDArray[np.uint8]:
    turn = np.cumsum((tokens == marks.assistant).astype(np.int8) - (tokens == marks.user).astype(np.int8))
    return np.asarray((turn >= 0) & (tokens != marks.assistant), np.uint8)


def _after_equals(tokens: npt.NDArray[np.uint16], marks: _Marks) -> npt.NDArray[np.uint8]:
    """A drill's operands are drawn at random; only what follows the first sign of equality of a line can be known."""
    is_equals = tokens == marks.equals
    seen = np.cumsum(is_equals) - is_equals  # signs of equality before each token
    line_begins = np.concatenate(([True], tokens[:-1] == marks.line_end))
    seen_before_line = np.maximum.accumulate(np.where(line_begins, seen, 0))
    return np.asarray(seen > seen_before_line, np.uint8)
