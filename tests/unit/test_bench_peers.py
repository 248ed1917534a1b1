"""A peers run without OpenVINO: who takes part, which answers are compared, how differences are explained, tables, the RESULT line."""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from outrider.cli.__main__ import main
from outrider.errors import InvalidRequest, Unavailable
from outrider.launch.threads import ThreadPlan
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.v1 import verifier_pb2
from outrider_bench import openvino_folder, peers
from outrider_bench.contestants import Stack
from outrider_bench.cost import Metered
from outrider_bench.differences import Difference, explain
from outrider_bench.gpu.card import Card
from outrider_bench.lineup import LOOKUP, OPENVINO, OPENVINO_DRAFT, OPENVINO_LOOKUP, OpenVinoWorkers, families, thread_counts
from outrider_bench.measurement import Answer, Prompt, Summary
from outrider_bench.openvino_peer import OpenVinoPeer, OpenVinoSettings, draft_candidates, lookup_candidates, plain_candidates
from outrider_bench.peers import Found, bill, comparable, result
from outrider_bench.peers_report import NOTES, BilledRow, markdown, tables
from outrider_bench.results import ASSISTED, GENERATE, PLAIN, Cell, Flip, Recorder, Row
from outrider_bench.sampling_check import Sampled, check_sampling, compare
from outrider_bench.stage import Served, Stage

NAMES = [
    GENERATE,
    ASSISTED,
    LOOKUP,
    OPENVINO,
    OPENVINO_DRAFT,
    OPENVINO_LOOKUP,
    PLAIN,
    "outrider serial",
    "outrider lookup",
    "outrider adaptive",
]


def stage(num_cores: int, device: str = "cpu") -> Stage:
    """One process and two, every policy, processes 1 to 3 and 4 to 6."""
    info = verifier_pb2.VerifierServiceGetInfoResponse(pacings=["plain", "serial", "pearl", "lookup", "adaptive"])
    served = []
    for index, threads in enumerate((ThreadPlan(num_cores, 1), ThreadPlan(num_cores - 1, 1))):
        processes = {name: SimpleNamespace(pid=3 * index + place) for place, name in enumerate(("drafter", "verifier", "gateway"), 1)}
        served.append(
            Served(
                threads,
                cast(Any, SimpleNamespace(processes=processes, spec=SimpleNamespace(together=not index))),
                cast(Any, object()),
                info,
            )
        )
    return Stage((cast(Any, SimpleNamespace(pid=10, dtype="float32")),), num_cores, tuple(served), device)


def workers() -> OpenVinoWorkers:
    return OpenVinoWorkers(*(cast(Any, SimpleNamespace(pid=pid)) for pid in (11, 12, 13)))


def metered(num_cores: int, *, quick: bool = False) -> dict[str, list[Metered]]:
    """Candidates by name."""
    found: dict[str, list[Metered]] = {}
    for family in families(stage(num_cores), workers(), quick):
        assert len({each.name for each in family}) == 1
        assert all(isinstance(each, Metered) for each in family)
        found[family[0].name] = [each for each in family if isinstance(each, Metered)]
    return found


def test_everyone_takes_part_with_settings_of_their_own() -> None:
    found = metered(2)
    assert list(found) == NAMES
    for family in found.values():
        assert len({each.settings for each in family}) == len(family) > 1
        assert {each.num_cores for each in family} <= {1, 2}


def test_each_is_billed_for_its_own_processes() -> None:
    pids = {name: {each.pids for each in family} for name, family in metered(2).items()}
    assert pids[GENERATE] == pids[ASSISTED] == pids[LOOKUP] == {(10,)}
    assert (pids[OPENVINO], pids[OPENVINO_DRAFT], pids[OPENVINO_LOOKUP]) == ({(11,)}, {(12,)}, {(13,)})
    assert pids[PLAIN] == pids["outrider serial"] == {(1, 2, 3), (4, 5, 6)}


def test_our_drafter_costs_a_core_where_it_drafts() -> None:
    found = metered(2)
    assert [each.num_cores for each in found[PLAIN]] == [2, 1]
    assert {each.num_cores for each in found["outrider serial"]} == {2}
    assert {each.num_cores for each in found["outrider lookup"]} == {2, 1}


def test_drafters_are_tried_with_trees_too_where_there_is_time() -> None:
    widths = {
        name: [each.contestant.wishes.tree_width for each in family if isinstance(each.contestant, Stack)]
        for name, family in metered(2).items()
    }
    for name in ("outrider serial", "outrider adaptive"):
        assert {2, 4} <= set(widths[name])
        assert widths[name].count(None) == 12, "and with chains, two ways of sharing the cores, as before"
    assert set(widths["outrider lookup"]) == set(widths[PLAIN]) == {None}
    assert {None} == {each.wishes.tree_width for each in stage(2).candidates("pearl", quick=True)}
    tree = next(each for each in stage(2).candidates("pearl", quick=False) if each.wishes.tree_width)
    assert tree.wishes.to_proto().tree_width == 2
    assert "tree_width=2" in tree.settings


def test_a_quick_run_has_one_candidate_of_each() -> None:
    assert {name: len(family) for name, family in metered(2, quick=True).items()} == dict.fromkeys(NAMES, 1)


def test_no_contestant_gets_more_threads_than_there_are_cores() -> None:
    assert thread_counts(1) == (1,)
    assert thread_counts(2) == (2, 1)
    assert {each.num_cores for family in metered(8).values() for each in family} <= set(range(1, 9))


def test_on_a_card_openvino_is_left_out_and_transformers_may_compile() -> None:
    on_card = {family[0].name: family for family in families(stage(8, "cuda"), None, quick=False)}
    assert list(on_card) == [name for name in NAMES if not name.startswith("openvino")]
    assert {each.num_cores for name in (GENERATE, ASSISTED, LOOKUP) for each in on_card[name] if isinstance(each, Metered)} == {1}
    compiled = {name: sum("compiled" in each.settings for each in family) for name, family in on_card.items()}
    assert compiled == {name: 2 if name == GENERATE else 0 for name in on_card}
    beside = [each.settings for family in families(stage(8), workers(), quick=False) for each in family]
    assert not any("compiled" in settings for settings in beside)


def test_a_card_is_asked_for_before_anything_runs_and_openvino_is_not(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The process that is asked is stood in for: test_bench_gpu.py asks a real one."""
    asked: list[list[str]] = []

    def missing(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        return subprocess.CompletedProcess(command, 0, json.dumps({"missing": "no CUDA card"}), "")

    monkeypatch.setattr(openvino_folder, "PACKAGES", ("openvino-that-is-nowhere",))
    monkeypatch.setattr("outrider_bench.gpu.card.subprocess.run", missing)
    assert main(["bench", "peers", "--device", "cuda", "--quick"]) == 1
    assert [command[-1] for command in asked] == ["cuda"]
    said = capsys.readouterr()
    assert not said.out
    assert len(said.err.splitlines()) == 1
    assert "bench peers: no CUDA" in said.err
    assert "nothing ran" in said.err


def test_with_a_card_the_report_names_it_and_says_who_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "find_card", lambda device, *_: Card({"card": f"a stand-in for {device}"}, 1 << 30, 1e12))
    facts = peers.facts_of_device("cuda")
    assert facts["card"] == "a stand-in for cuda"
    assert "OpenVINO GenAI is left out" in facts[peers.LEFT_OUT]


def test_what_does_not_run_on_a_card_says_so(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "speed", "--device", "cuda"]) == 2
    assert "speed runs on the processor only; gpu and peers take cuda" in capsys.readouterr().err
    assert main(["bench", "load", "--draft-shortlist", "off"]) == 2
    assert "load leaves it at auto; speed and peers take others" in capsys.readouterr().err


def test_openvino_drafts_by_a_length_or_by_confidence_never_both() -> None:
    assert all((each.num_tokens > 0) != (each.confidence > 0) for each in draft_candidates(2))
    assert all(each.num_tokens > 0 < each.ngram_len for each in lookup_candidates(2))
    assert {each.backend for each in plain_candidates(2)} == {"PA", "SDPA"}
    assert OpenVinoSettings(2, num_tokens=5, ngram_len=3).name == "PA k=5 n=3"
    assert OpenVinoSettings(2, confidence=0.4).name == "PA p>=0.4"


def test_openvino_is_asked_by_token_ids_with_its_settings() -> None:
    asked: list[dict[str, object]] = []

    def ask(request: dict[str, object]) -> Answer:
        asked.append(request)
        return Answer((1,), 1.0, 1.0)

    worker = SimpleNamespace(ask=ask)
    OpenVinoPeer(OPENVINO, cast(Any, worker), OpenVinoSettings(1, "SDPA")).answer(Prompt("prose", (4, 5)), 7, 0.8, 3)
    settings = {"num_threads": 1, "backend": "SDPA", "num_tokens": 0, "confidence": 0.0, "ngram_len": 0}
    assert asked == [{"prompt": (4, 5), "max_tokens": 7, "temperature": 0.8, "seed": 3, "settings": settings}]


COLD, WARM = Cell("copying", 0.0), Cell("copying", 0.8)


def row(cell: Cell, contestant: str, speed: float, per_round: float = 1.0) -> Row:
    return Row(cell, contestant, Summary(speed, 1.0, 0.0, per_round, 0.0, 0.0, 0.0, 10, 2.5), 0.1, None, (speed,))


def recorded() -> Recorder:
    """Two prompts; OpenVINO's second answer differs, in both repetitions, at two places."""
    recorder = Recorder()
    for cell in (COLD, WARM):
        for repetition, odd in enumerate((9, 8)):
            for name, second in ((PLAIN, (1, 2, 3)), (OPENVINO, (1, odd, 3) if odd == 9 else (1, 2, odd))):
                recorder.add(cell, name, repetition, Answer((1, 2), 1.0, 1.0))
                recorder.add(cell, name, repetition, Answer(second, 1.0, 1.0))
    return recorder


def test_peers_are_compared_at_temperature_0_only() -> None:
    recorder = recorded()
    assert [flip.position for flip in comparable(recorder, row(COLD, OPENVINO, 1.0))] == [1, 2]
    assert comparable(recorder, row(WARM, OPENVINO, 1.0)) == []
    assert comparable(recorder, row(WARM, PLAIN, 1.0)) == []


def test_a_prompt_answered_otherwise_twice_counts_once() -> None:
    rows = [row(cell, name, 100.0) for cell in (COLD, WARM) for name in (PLAIN, OPENVINO)]
    flips = [flip for each in rows for flip in comparable(recorded(), each)]
    contestants = [
        Metered(cast(Any, SimpleNamespace(name=name)), (), cores, lambda pids: 0.0) for name, cores in ((PLAIN, 1), (OPENVINO, 2))
    ]
    billed = bill(rows, contestants, flips, 2)
    assert [(each.num_cores, each.num_unlike) for each in billed] == [(1, 0), (2, 1), (1, 0), (2, None)]


@dataclass(frozen=True)
class Said:
    position: int
    gap: float
    near_tie: bool


class FakeJudge:
    """Picks token 2 everywhere; token 9 is a near tie, nothing else is."""

    def judge(self, prompt: Sequence[int], answer: Sequence[int], params: SamplingParams, address: NoiseAddress) -> list[Said]:
        assert params.temperature == 0.0
        places = [(len(prompt) + index, token) for index, token in enumerate(answer) if token != 2]
        return [Said(place, 0.0005 if token == 9 else 4.0, token == 9) for place, token in places]


def explained(*flips: Flip) -> list[Difference]:
    prompts = {"copying": [Prompt("copying", (5, 5)), Prompt("copying", (6,))]}
    return explain(flips, {COLD.name: COLD}, recorded(), prompts, FakeJudge(), PLAIN)


def test_a_near_tie_is_told_from_a_fault() -> None:
    near, fault, ended = explained(
        Flip(COLD.name, OPENVINO, 1, 1, 2, 9), Flip(COLD.name, OPENVINO, 1, 1, 2, 7), Flip(COLD.name, OPENVINO, 1, 3, -1, 4)
    )
    assert (near.gap, near.near_tie) == (0.0005, True)
    assert (fault.gap, fault.near_tie) == (4.0, False)
    assert (ended.gap, ended.near_tie) == (None, False)
    assert near.text == "copying, T = 0, openvino plain, prompt 1: token 1 is 9, plain 2; a near tie, logits 0.0005 apart"
    assert "NOT a near tie, logits 4 apart" in fault.text
    assert ended.text.endswith("one of them had ended")


ROWS = [
    BilledRow(row(COLD, GENERATE, 100.0), 2, 0, 4),
    BilledRow(row(COLD, OPENVINO_DRAFT, 250.0, 3.25), 2, 1, 4),
    BilledRow(row(COLD, PLAIN, 200.0), 1, 0, 4),
    BilledRow(row(COLD, "outrider serial", 400.0, 8.0), 2, 0, 4),
    BilledRow(row(WARM, OPENVINO_DRAFT, 200.0, 3.0), 2, None, 4),
]


def test_a_table_has_speed_cost_and_identity() -> None:
    found = tables(ROWS)
    assert list(found) == ["copying, T = 0", "copying, T = 0.8"]
    assert found["copying, T = 0"][1] == ["openvino draft", "250", "10%", "2.50", "1.25", "1.0", "3.25", "2", "125", "2.5", "1 of 4"]
    assert found["copying, T = 0"][2][7:9] == ["1", "200"]
    assert found["copying, T = 0.8"][0][3:5] == ["", ""]
    assert found["copying, T = 0.8"][0][-1] == ""


def test_a_report_says_how_its_numbers_are_made_and_shows_the_plot() -> None:
    differences = explained(Flip(COLD.name, OPENVINO_DRAFT, 1, 1, 2, 9))
    text = markdown({"commit": "abc"}, {PLAIN: "off"}, ROWS, [each.text for each in differences], "peers.svg")
    assert "| outrider serial | 400 | 10% | 4.00 | 2.00 | 1.0 | 8.00 | 2 | 200 | 2.5 | 0 of 4 |" in text
    assert "\n- copying, T = 0, openvino draft, prompt 1: token 1 is 9" in text
    assert "](peers.svg)" in text
    assert all(note in text for note in NOTES)
    assert "](" not in markdown({}, {}, ROWS, [], None)


def test_the_result_has_the_ratios_and_who_differs() -> None:
    sampled = [Sampled(OPENVINO_DRAFT, 0.52, 0.0005), Sampled("outrider serial", 0.0, 1.0)]
    differences = explained(Flip(COLD.name, OPENVINO_DRAFT, 1, 1, 2, 9))
    found = Found(ROWS, differences, sampled, "outrider serial", {PLAIN: "off", OPENVINO_DRAFT: "k=5"})
    values = result(found, {"commit": "abc"})
    assert (values["iso_t0_vs_generate"], values["iso_t0_vs_openvino_draft"], values["iso_t0_vs_own_plain"]) == (4.0, 1.6, 2.0)
    assert values["identical"] is False
    assert values["num_unlike_plain"] == {PLAIN: 0, OPENVINO_DRAFT: 1}
    assert values["num_near_ties"] == 1
    assert values["samples_unlike_plain"] == [OPENVINO_DRAFT]
    assert values["sampling_distances"] == {OPENVINO_DRAFT: 0.52, "outrider serial": 0.0}
    assert found.own_differences == []
    cells = values["cells"]
    assert isinstance(cells, list)
    assert cells[3] | {"cores": 2, "tokens_per_s_per_core": 200.0, "cpu_ms_per_token": 2.5, "unlike_plain": 0} == cells[3]


@dataclass
class Sampler:
    """Its second token is drawn from num_tokens tokens by the seed, in an order of its own."""

    name: str
    num_tokens: int
    factor: int
    settings: str = ""

    def answer(self, prompt: Prompt, max_tokens: int, temperature: float, seed: int) -> Answer:
        assert temperature > 0.0
        return Answer((0, seed * self.factor % self.num_tokens, 0, 0)[:max_tokens], 1.0, 1.0)


def test_samples_of_another_distribution_are_told_from_luck() -> None:
    calls: list[None] = []
    contestants = [Sampler(PLAIN, 5, 1), Sampler("same", 5, 3), Sampler("narrow", 2, 1)]
    same, narrow = check_sampling(contestants, Prompt("prose", (1,)), 60, lambda: calls.append(None))
    assert len(calls) == 180
    assert (same.distance, same.is_the_targets) == (0.0, True)
    assert narrow.distance == pytest.approx(0.6)
    assert not narrow.is_the_targets
    assert "its samples are NOT those of plain decoding (distance 0.60" in narrow.text
    assert "its samples are not told from plain decoding" in same.text


def test_the_distance_of_two_samples_is_judged_by_permutations() -> None:
    assert compare([1, 2, 3, 4], [4, 3, 2, 1]) == (0.0, 1.0)
    distance, luck = compare([1] * 3, [2] * 3)
    assert distance == 1.0
    assert luck == pytest.approx(0.1, abs=0.03)  # 2 of the 20 ways to deal three and three


def test_without_the_extra_the_command_says_what_installs_it(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(openvino_folder, "PACKAGES", ("openvino-that-is-nowhere",))
    with pytest.raises(InvalidRequest, match="make bench-peers"):
        openvino_folder.installed_versions()
    assert main(["bench", "peers", "--quick"]) == 2
    assert "openvino-that-is-nowhere is not installed: `make bench-peers` installs the extra `peers`" in capsys.readouterr().err


@pytest.fixture
def weights(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A model folder; what would convert it copies the weights' size into a file."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "model.safetensors").write_bytes(b"12345")
    monkeypatch.setattr(openvino_folder, "installed_versions", lambda: {"openvino": "1"})
    return folder


def test_a_model_is_converted_once_for_each_state_of_its_weights(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[str] = []

    def export(model_path: str, folder: Path) -> None:
        made.append(model_path)
        (folder / "openvino_model.xml").write_text("graph")

    monkeypatch.setattr(openvino_folder, "_export", export)
    cache = tmp_path / "cache"
    first = openvino_folder.converted(str(weights), cache)
    assert openvino_folder.converted(str(weights), cache) == first
    assert made == [str(weights)]
    os.utime(weights / "model.safetensors", (1, 1))
    second = openvino_folder.converted(str(weights), cache)
    assert second != first
    assert sorted(cache.iterdir()) == sorted([first, second])
    assert (second / "openvino_model.xml").read_text() == "graph"


def test_a_failed_conversion_says_why_and_leaves_nothing(weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def export(command: Sequence[str], **options: object) -> SimpleNamespace:
        return SimpleNamespace(returncode=1, stderr="x" * 5000 + "OpConversionFailure: aten::odd")

    monkeypatch.setattr(subprocess, "run", export)
    with pytest.raises(Unavailable, match=r"could not be converted to OpenVINO:\nx+OpConversionFailure: aten::odd$"):
        openvino_folder.converted(str(weights), tmp_path / "cache")
    assert list((tmp_path / "cache").iterdir()) == []
