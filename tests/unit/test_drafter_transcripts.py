"""The drafter's session as lab transcripts: a command, `----`, its effects. REWRITE=1 regenerates; reviewers read the diff.

Commands (key=value; lists with commas): open, commit, grown, feedback, close, failed, drained. A commit's hash is right unless hash= is
given. grown hedge=yes: side branches; more=yes: they can go on. The verifier's truth is kept beside the session only to compute that hash.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from outrider.session.drafter import DrafterSession
from outrider.session.drafter_admission import DrafterBounds
from outrider.session.events import DrafterEffect, DrafterEvent, Drained, Grown, Observe, ReleaseSession, SendToVerifier, SourceFailed
from outrider.session.events import VerifierFrameArrived as Arrived
from outrider.types.frames import Close, CloseReason, Commit, DraftLimits, Feedback, Open, Opened, Refused, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import IntArray, extend_hash

FOLDER = Path(__file__).parents[1] / "transcripts" / "drafter"
BOUNDS = DrafterBounds("model", vocab_size=100, eos_token_ids=frozenset({99}), max_len=64, max_prefix_len=48, max_nodes=512)


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part]


def array(text: str) -> IntArray:
    return np.array(numbers(text), np.int32)


def shown(values: object) -> str:
    return ",".join(map(str, np.asarray(values).tolist())) or "-"


class Lab:
    """One session under test."""

    def __init__(self) -> None:
        self.session = DrafterSession(1, BOUNDS)
        self.truth: list[int] = []

    def run(self, line: str) -> str:
        command, *pairs = line.split()
        given = dict(pair.split("=", 1) for pair in pairs)
        effects = self.session.step(self.event(command, given))
        wants = self.session.wants()
        lines = [describe(effect) for effect in effects]
        return "\n".join([*lines, "ended" if self.session.ended else f"wants {'-' if wants is None else wants}"])

    def event(self, command: str, given: dict[str, str]) -> DrafterEvent:
        inc = int(given.get("inc", "1"))
        match command:
            case "open":
                return Arrived(self.opening(inc, given))
            case "commit":
                return Arrived(self.commit(inc, given))
            case "grown":
                end = TailEnd[given.get("end", "MORE")]
                tokens, parents = tuple(numbers(given.get("tokens", ""))), tuple(numbers(given.get("parents", "")))
                scores = np.full(len(tokens), -0.5, np.float32) if given.get("scores") else None
                times, is_hedge, may_hedge = (10, 1000, 2000), "hedge" in given, "more" in given
                return Grown(int(given.get("tree", "0")), tokens, parents, scores, end, *times, is_hedge=is_hedge, may_hedge=may_hedge)
            case "feedback":
                return Arrived(Feedback(1, inc, array("1"), array("1"), np.zeros(1, np.float32)))
            case "close":
                return Arrived(Close(1, inc, CloseReason[given["reason"]]))
            case "failed":
                return SourceFailed(given["reason"].replace("_", " "))
            case "drained":
                return Drained()
        raise AssertionError(f"unknown command {command}")

    def opening(self, inc: int, given: dict[str, str]) -> Open:
        tokens = numbers(given.get("tokens", ""))
        self.truth = list(tokens)
        limits = DraftLimits(
            max_len=int(given.get("max_len", "64")),
            max_nodes=int(given.get("max_nodes", "16")),
            tree_width=int(given.get("width", "1")),
            stop_below=float(given.get("stop_below", "0")),
            flush_nodes=int(given.get("flush", "0")),
            hedge_nodes=int(given.get("hedge", "0")),
        )
        prefix_len = int(given.get("prefix", len(tokens)))
        sampling = SamplingParams(temperature=float(given.get("temperature", "0")))
        num_prompt = int(given.get("prompt", prefix_len))
        until = int(given.get("until", "0"))
        first, adapter = np.array(tokens, np.int32), given.get("adapter", "")
        return Open(1, inc, "r", first, prefix_len, num_prompt, sampling, NoiseAddress(1), limits, until, adapter=adapter)

    def commit(self, inc: int, given: dict[str, str]) -> Commit:
        begin, tokens = int(given["begin"]), numbers(given.get("tokens", ""))
        if begin <= len(self.truth):
            self.truth = self.truth[:begin] + tokens + self.truth[begin + len(tokens) :]
        stated = int(given.get("hash", extend_hash(0, self.truth[: begin + len(tokens)])))
        return Commit(1, inc, begin, np.array(tokens, np.int32), stated, 0, 5, int(given.get("until", "0")), int(given.get("hedge", "0")))


def describe(effect: DrafterEffect) -> str:
    match effect:
        case Observe():
            path, how = shown(effect.path), "reroot" if effect.reroot else "follow"
            return f"observe {how} tree={effect.tree_id} tokens={shown(effect.tokens)} path={path}"
        case ReleaseSession(reason=reason):
            return f"release {reason.name}"
        case SendToVerifier(frame=Tail() as tail):
            nodes = f"first={tail.first_node} tokens={shown(tail.tokens)} parents={shown(tail.parents)}"
            times = f" us={tail.draft_us}" if tail.draft_us else ""
            times += f" hedge_us={tail.hedge_us}" if tail.hedge_us else ""
            scores = "" if tail.scores is None else f" scores={shown(tail.scores)}"
            return f"send tail inc={tail.incarnation} tree={tail.tree_id} base={tail.base} {nodes} end={tail.end.name}{times}{scores}"
        case SendToVerifier(frame=Opened() as opened):
            return f"send opened inc={opened.incarnation} prefilled_to={opened.prefilled_to}"
        case SendToVerifier(frame=Refused() as refused):
            return f"send refused inc={refused.incarnation}: {refused.reason}"
        case SendToVerifier(frame=Close() as close):
            return f"send close inc={close.incarnation} {close.reason.name}: {close.detail}"
    raise AssertionError(effect)


def replay(text: str) -> str:
    """The transcript with the effects as they are now; comments and blank lines stay."""
    lab = Lab()
    output: list[str] = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        if not rest:
            output.append("\n".join(comments))
            continue
        if rest[0] == "new":
            lab = Lab()
            output.append("\n".join([*comments, "new"]))
            continue
        output.append("\n".join([*comments, rest[0], "----", lab.run(rest[0])]))
    return "\n\n".join(output) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    actual = replay(path.read_text())
    if os.environ.get("REWRITE") == "1":
        path.write_text(actual)
    assert actual == path.read_text()


def test_transcripts_exist() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 5
