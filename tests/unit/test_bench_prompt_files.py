"""A user's own prompts in the bench: what files may look like, what is kept apart for choosing settings, and what does not fit."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.cli import bench
from outrider.errors import InvalidRequest
from outrider_bench.goals import bound_fraction, ratios
from outrider_bench.measurement import Answer, summarise
from outrider_bench.prompt_files import NO_FILES, TUNING_PART, PromptFiles, read_files
from outrider_bench.prompts import TUNING_SEED, PromptSource, make_prompts, source_of
from outrider_bench.results import PLAIN, Cell, Row

QUESTION, BEST = "How many ducks?", "outrider serial"
RECORDS: tuple[tuple[str, object], ...] = (
    ("HumanEval", {"task_id": "HumanEval/0", "prompt": QUESTION, "test": "def check(): ..."}),
    ("MT-Bench", {"question_id": 81, "category": "writing", "turns": [QUESTION, "And geese?"]}),
    ("GSM8K", {"question": QUESTION, "answer": "9 * 2 = 18"}),
    ("MBPP", {"text": QUESTION, "code": "R = 3", "task_id": 1}),
    ("OpenAI", {"messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": QUESTION}]}),
    ("ShareGPT", {"conversations": [{"from": "system", "value": "Be brief."}, {"from": "human", "value": QUESTION}]}),
    ("a text alone", QUESTION),
)


def jsonl(path: Path, records: list[object]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")
    return path


def numbered(num: int) -> PromptFiles:
    return PromptFiles({"mine": tuple(f"text {at}" for at in range(num))})


@pytest.mark.parametrize("record", [record for _, record in RECORDS], ids=[name for name, _ in RECORDS])
def test_records_of_public_sets_are_understood(tmp_path: Path, record: object) -> None:
    assert read_files([jsonl(tmp_path / "set.jsonl", [record])], None).texts == {"set": (QUESTION,)}


def test_a_field_of_another_name_can_be_named(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "svamp.jsonl", [{"Body": QUESTION, "prompt": "not this"}])
    assert read_files([path], "Body").texts == {"svamp": (QUESTION,)}
    with pytest.raises(InvalidRequest, match=r"record 1: no text under Title.*--prompt-field"):
        read_files([path], "Title")


def test_lists_and_lines_of_text_are_read_too(tmp_path: Path) -> None:
    listed, lines = tmp_path / "listed.json", tmp_path / "lines.txt"
    listed.write_text(json.dumps([{"prompt": "one"}, "two"]), encoding="utf-8")
    lines.write_text("first\n\n  \nsecond, with an ü\n", encoding="utf-8")
    files = read_files([listed, lines], None)
    assert files.tasks == ("listed", "lines")
    assert files.texts == {"listed": ("one", "two"), "lines": ("first", "second, with an ü")}


@pytest.mark.parametrize("separator", ["\u2028", "\u2029", "\x85"])
def test_a_line_ends_at_a_newline_only(tmp_path: Path, separator: str) -> None:
    text = f"How many{separator}ducks?"
    records, lines = tmp_path / "records.jsonl", tmp_path / "lines.txt"
    records.write_bytes(f'{json.dumps({"prompt": text}, ensure_ascii=False)}\r\n"next"\n'.encode())
    lines.write_bytes(f"{text}\r\nnext\n".encode())
    assert read_files([records, lines], None).texts == {"records": (text, "next"), "lines": (text, "next")}


@pytest.mark.parametrize("name", ["set.jsonl", "set.txt"])
def test_a_mark_of_the_byte_order_is_no_part_of_the_first_prompt(tmp_path: Path, name: str) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + (b'{"prompt": "first"}\r\n' if name == "set.jsonl" else b"first\r\n"))
    assert read_files([tmp_path / name], None).texts == {"set": ("first",)}


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("set.jsonl", b'{"prompt": 3}\n', "record 1: no text under prompt, turns"),
        ("set.jsonl", b'{"prompt": "a"}\n{"turns": []}\n', "record 2"),
        ("set.jsonl", b'{"messages": [{"role": "system", "content": "x"}]}\n', "record 1"),
        ("set.jsonl", b"7\n", "record 1"),
        ("set.jsonl", b'{"prompt": "a"\n', "is not jsonl"),
        ("set.json", b'{"prompt": "a"}', "is no JSON list"),
        ("set.json", b"[", "is not json"),
        ("set.json", b"[" * 100_000, "is not json"),
        ("set.jsonl", b"\n\n", "holds no prompt"),
        ("set.txt", b"\xff\xfe\x00", "cannot be read as text"),
        ("set.parquet", b"PAR1", "a prompt file is one of .jsonl, .json, .txt"),
    ],
)
def test_what_is_no_prompt_file_is_refused_with_its_name(tmp_path: Path, name: str, content: bytes, problem: str) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(InvalidRequest, match=problem) as refused:
        read_files([path], None)
    assert refused.value.field == "--prompts-from"
    assert name in refused.value.problem


def test_a_file_that_is_not_there_and_one_that_is_named_twice_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"gone\.jsonl cannot be read"):
        read_files([tmp_path / "gone.jsonl"], None)
    path = jsonl(tmp_path / "set.jsonl", ["a"])
    with pytest.raises(InvalidRequest, match=f"two files are called {tmp_path.name}/set"):
        read_files([path, path], None)


def test_files_of_one_name_are_told_apart_by_their_folders(tmp_path: Path) -> None:
    (tmp_path / "mt_bench").mkdir()
    files = [jsonl(tmp_path / "question.jsonl", ["a"]), jsonl(tmp_path / "mt_bench" / "question.jsonl", ["b"])]
    assert read_files(files, None).texts == {f"{tmp_path.name}/question": ("a",), "mt_bench/question": ("b",)}


@pytest.mark.parametrize("num", [2, 3, 40])
def test_no_setting_is_chosen_on_a_text_that_is_reported(num: int) -> None:
    files = numbered(num)
    tuning = set(files.drawn("mine", TUNING_SEED, to_tune=True))
    reported = set(files.drawn("mine", 5, to_tune=False))
    assert tuning.isdisjoint(reported)
    assert len(tuning) == -(-num // TUNING_PART)
    assert tuning | reported == set(files.texts["mine"])
    assert set(files.drawn("mine", 6, to_tune=False)) == reported, "whatever the seed"


def test_a_seed_draws_the_same_texts_again_and_another_seed_others() -> None:
    files = numbered(40)
    first, again, other = ([*files.drawn("mine", seed, to_tune=False)] for seed in (5, 5, 6))
    assert first == again
    assert first[:4] != other[:4]


class Gateway:
    """A token a character; a context of 24."""

    def model_info(self) -> Any:
        return SimpleNamespace(max_prompt_tokens=23, max_completion_tokens=23, has_chat_template=False)

    def tokenize(self, text: str) -> tuple[int, ...]:
        return tuple(text.encode())


def test_texts_that_leave_no_room_for_the_answer_are_passed_over() -> None:
    short, long = [f"text {at}" for at in range(8)], ["x" * 20 + str(at) for at in range(8)]
    source = PromptSource(PromptFiles({"mine": (*short, *long)}), room=16)
    gateway = cast(Any, Gateway())
    num_short = sum(text in short for text in source.files.drawn("mine", 5, to_tune=False))
    prompts = make_prompts(gateway, "mine", num_short, 5, source)
    assert {bytes(prompt.token_ids).decode() for prompt in prompts} <= set(short)
    assert len({prompt.token_ids for prompt in prompts}) == num_short
    with pytest.raises(
        InvalidRequest, match=rf"mine has {num_short} prompts to report of at most 8 tokens, and {num_short + 1} are wanted"
    ):
        make_prompts(gateway, "mine", num_short + 1, 5, source)
    with pytest.raises(InvalidRequest, match="for choosing settings"):
        make_prompts(gateway, "mine", 16, TUNING_SEED, source)


def test_where_one_task_is_enough_it_is_the_first_file() -> None:
    files = PromptFiles({"b": ("x",), "a": ("y",)})
    assert PromptSource(files).task("arithmetic") == "b"
    assert source_of(argparse.Namespace(prompt_files=NO_FILES), 8).task("arithmetic") == "arithmetic"


def test_where_none_of_the_goals_tasks_was_run_the_worst_of_all_that_were_counts() -> None:
    def row(task: str, contestant: str, tokens_per_s: float) -> Row:
        summary = summarise([Answer((1,) * 10, 1.0, 10_000.0 / tokens_per_s)])
        return Row(Cell(task, 0.0), contestant, summary, 0.0, 0.5 if contestant == BEST else None, (tokens_per_s,))

    mine = [row("ducks", BEST, 30.0), row("ducks", PLAIN, 10.0), row("geese", BEST, 20.0), row("geese", PLAIN, 10.0)]
    assert ratios(mine, BEST)["iso_t0_vs_own_plain"] == 2.0
    assert bound_fraction(mine, BEST)["bound_fraction_at"] in (f"{BEST}, ducks, T = 0", f"{BEST}, geese, T = 0")
    with_goal = [*mine, row("copying", BEST, 40.0), row("copying", PLAIN, 10.0)]
    assert ratios(with_goal, BEST)["iso_t0_vs_own_plain"] == 4.0, "geese are no goal of anybody's beside copying"


def parsed(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    bench.add_parser(parser.add_subparsers())
    return parser.parse_args(["bench", *words])


def test_files_take_the_place_of_the_reference_tasks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[argparse.Namespace] = []

    def run(args: argparse.Namespace) -> int:
        seen.append(args)
        return 0

    monkeypatch.setattr("outrider_bench.speed.run", run)
    path = jsonl(tmp_path / "ducks.jsonl", [{"Body": QUESTION}])
    assert bench.run(parsed("speed", "--prompts-from", str(path), "--prompt-field", "Body")) == 0
    assert bench.run(parsed("speed", "--tasks", "prose")) == 0
    assert (seen[0].tasks, seen[0].prompt_files.texts) == (["ducks"], {"ducks": (QUESTION,)})
    assert (seen[1].tasks, seen[1].prompt_files) == (["prose"], NO_FILES)


def test_who_makes_prompts_takes_none_and_a_field_needs_a_file(tmp_path: Path) -> None:
    path = jsonl(tmp_path / "ducks.jsonl", [QUESTION])
    with pytest.raises(InvalidRequest, match="simulate makes its own prompts"):
        bench.run(parsed("simulate", "--prompts-from", str(path)))
    with pytest.raises(InvalidRequest, match="--tasks: are the reference tasks"):
        bench.run(parsed("speed", "--tasks", *bench.TASKS, "--prompts-from", str(path)))
    with pytest.raises(InvalidRequest, match="--prompt-field: says where"):
        bench.run(parsed("speed", "--prompt-field", "Body"))
