"""Colouring: each piece of a delta belongs to one token, and the pieces are exactly the delta's text."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import pytest
from rich.console import Console

from outrider.cli.painter import Painter, legend, local_decoder
from outrider.v1 import generation_pb2 as pb
from outrider.v1 import sampling_pb2

ACCEPTED = sampling_pb2.TOKEN_ORIGIN_ACCEPTED
BONUS = sampling_pb2.TOKEN_ORIGIN_BONUS
CORRECTED = sampling_pb2.TOKEN_ORIGIN_CORRECTED
BYTES = {1: b"Hel", 2: b"lo ", 3: "é".encode()[:1], 4: "é".encode()[1:], 5: b"!", 6: b""}

RAW = "a tab\t, ::m:m: and :car: [/b] [bold]x\r\nover\x08\x0c" + 40 * " wide" + "  "


def decode(ids: Sequence[int]) -> str:
    return b"".join(BYTES[token] for token in ids).decode(errors="ignore")


def delta(text: str, *tokens: tuple[int, int]) -> pb.Delta:
    return pb.Delta(text=text, token_ids=[token for token, _ in tokens], origins=[origin for _, origin in tokens])  # type: ignore[misc]


def test_each_token_gets_its_own_piece() -> None:
    pieces = Painter(decode).pieces(delta("Hello !", (1, ACCEPTED), (2, ACCEPTED), (5, BONUS)))
    assert pieces == [("Hel", ACCEPTED), ("lo ", ACCEPTED), ("!", BONUS)]


def test_a_character_split_between_tokens_belongs_to_the_one_that_completes_it() -> None:
    assert Painter(decode).pieces(delta("é!", (3, ACCEPTED), (4, CORRECTED), (5, BONUS))) == [("é", CORRECTED), ("!", BONUS)]


def test_a_character_completed_in_the_next_delta_is_painted_there() -> None:
    painter = Painter(decode)
    assert painter.pieces(delta("", (3, ACCEPTED))) == []
    assert painter.pieces(delta("é!", (4, CORRECTED), (5, BONUS))) == [("é", CORRECTED), ("!", BONUS)]


def test_text_cut_off_at_a_stop_string_is_never_exceeded() -> None:
    pieces = Painter(decode).pieces(delta("Hel", (1, ACCEPTED), (2, ACCEPTED), (5, BONUS)))
    assert "".join(text for text, _ in pieces) == "Hel"


def test_text_held_back_earlier_is_not_lost() -> None:
    pieces = Painter(decode).pieces(delta("held back !", (5, BONUS)))
    assert "".join(text for text, _ in pieces) == "held back !"


def test_without_a_tokenizer_a_delta_is_one_piece() -> None:
    assert Painter(None).pieces(delta("Hello ", (1, ACCEPTED), (2, CORRECTED))) == [("Hello ", CORRECTED)]


def test_tokens_without_text_are_counted_all_the_same() -> None:
    painter = Painter(decode)
    painter.pieces(delta("Hel", (1, ACCEPTED), (6, BONUS)))
    assert painter.counts == Counter({ACCEPTED: 1, BONUS: 1})


def test_paint_keeps_the_text_and_colours_it() -> None:
    painted = Painter(decode).paint(delta("Hel!", (1, ACCEPTED), (5, CORRECTED)))
    assert painted.pieces == (("Hel", "green"), ("!", "bold red"))


def test_painted_text_is_the_deltas_character_by_character() -> None:
    terminal = io.StringIO()
    console = Console(file=terminal, width=20, force_terminal=True, color_system="standard")
    console.print(Painter(None).paint(delta(RAW, (1, ACCEPTED))), soft_wrap=True)
    assert terminal.getvalue() == f"\x1b[32m{RAW}\x1b[0m"


def test_the_legend_counts_tokens() -> None:
    assert "3 accepted" in legend(Counter({ACCEPTED: 3})).plain
    assert "accepted" in legend().plain


def test_a_folder_without_a_tokenizer_has_no_decoder(tmp_path: Path) -> None:
    assert local_decoder(str(tmp_path)) is None


@pytest.mark.parametrize("name", ["ref-large", "ref-small"])
def test_the_reference_tokenizer_decodes(name: str) -> None:
    from outrider_models.paths import model_dir

    decoder = local_decoder(str(model_dir(name)))
    assert decoder is not None
    assert isinstance(decoder([10, 11, 12]), str)
