"""The verifier's session as lab transcripts: a command, `----`, its effects and the state after it. REWRITE=1 regenerates.

Commands (key=value; lists with commas):
  new prompt=.. max_tokens=.. stop=..   a fresh session (pacing pearl, gamma 4); eos of the vocabulary of 100 is 0; lookup=yes: `adaptive`,
                                        with guesses from its own text; hedge=8: the policy allows so many nodes of side branches
  join d / lose d                       a drafter's stream comes up / is lost
  opened d                              the drafter answers Open
  tail d tree=0 base=3 tokens=4,5 ..    guesses; parents default to a chain after first=, the hash to that of the truth before base
  plan nodes=8 feed=64                  pacing takes the session into the step (lookup=yes: with guesses from its own text)
  verified path=0,1 pick=9              the step's verdict (bonus=yes: nothing was corrected); chunk: not the last of a prefill
  close d reason=.. / refused d         the drafter gives up
  cancel, append tokens=..              the client leaves; a routed mode's kept step
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest

from outrider.session.events import (
    CancelRequested,
    DrafterFrameArrived,
    DrafterFrameMalformed,
    DrafterJoined,
    DrafterLost,
    Emit,
    Finish,
    Keep,
    RoundPlanned,
    RoundVerified,
    SendToDrafter,
    TokensAppended,
    VerifierEffect,
    VerifierEvent,
    Verify,
)
from outrider.session.opening import VerifierSpec
from outrider.session.pacing.adaptive import AdaptivePacing
from outrider.session.pacing.contract import Pacing, SessionView
from outrider.session.pacing.pearl import PearlPacing
from outrider.session.verifier import VerifierSession
from outrider.types.frames import Close, CloseReason, Commit, DraftLimits, Open, Opened, Refused, Tail, TailEnd
from outrider.types.sampling import NoiseAddress, SamplingParams
from outrider.types.tree import IntArray, Verdict, extend_hash

FOLDER = Path(__file__).parents[1] / "transcripts" / "verifier"
VOCAB_SIZE = 100


def numbers(text: str) -> list[int]:
    return [int(part) for part in text.split(",") if part not in ("", "-")]


def array(text: str) -> IntArray:
    return np.array(numbers(text), np.int32)


def shown(values: object) -> str:
    return ",".join(map(str, np.asarray(values).tolist())) or "-"


class HedgingPearl(PearlPacing):
    """PEARL with side branches."""

    hedges = True

    def __init__(self, draft_len: int, num_nodes: int) -> None:
        super().__init__(draft_len)
        self._num_nodes = num_nodes

    def hedge_nodes(self, session: SessionView) -> int:
        return self._num_nodes


class Lab:
    """One session under test, with a clock that ticks 100 us per command."""

    def __init__(self, given: dict[str, str]) -> None:
        prompt = array(given.get("prompt", "1,2,3"))
        max_len = len(prompt) + int(given.get("max_tokens", "20"))
        spec = VerifierSpec(
            session=1,
            incarnation=1,
            request_id="r",
            prefix=prompt,
            num_prompt=len(prompt),
            max_len=max_len,
            stop_token_ids=frozenset(numbers(given.get("stop", "0"))),
            vocab_size=VOCAB_SIZE,
            sampling=SamplingParams(temperature=0.0),
            noise=NoiseAddress(1),
            limits=DraftLimits(max_len=max_len),
            max_draft_len=int(given.get("max_draft_len", "8")),
            max_nodes=int(given.get("max_nodes", "16")),
            with_rows=given.get("rows") == "yes",
            lookup=given.get("lookup") == "yes",
        )
        self.now_us = 0
        pacing: Pacing = AdaptivePacing() if spec.lookup else PearlPacing(4)
        if "hedge" in given:
            pacing = HedgingPearl(4, int(given["hedge"]))
        self.session = VerifierSession(spec, pacing, self.now_us)

    def run(self, command: str, who: str, given: dict[str, str]) -> str:
        self.now_us += int(given.get("after_us", "100"))
        before = self.counters()
        effects = self.session.step(self.event(command, who, given))
        changed = [f"{name}+{count - before[name]}" for name, count in self.counters().items() if count > before[name]]
        lines = [describe(effect) for effect in effects] + ([" ".join(["counted", *changed])] if changed else [])
        return "\n".join([*lines, self.state()])

    def counters(self) -> dict[str, int]:
        stats = self.session.statistics
        return {
            "stale": stats.num_tails_stale,
            "repeated": stats.num_tails_repeated,
            "gap": stats.num_tails_gapped,
            "violation": stats.num_violations,
            "reopen": stats.num_reopens,
            "missed": stats.num_missed_deadlines,
            "looked_up": stats.num_looked_up,
            "looked_up_accepted": stats.num_looked_up_accepted,
            "mismatches": stats.num_hedge_tests,
            "hedged": stats.num_hedge_hits,
        }

    def state(self) -> str:
        if self.session.finished is not None:
            return "finished"
        view = self.session.view(self.now_us)
        flags = [name for name in ("has_drafter", "following", "tail_ended") if getattr(view, name)]
        flags += [f"looked_up={len(view.lookup_rights)}"] if view.lookup_rights else []
        flags += [f"sides={shown(view.side_depths)}"] if view.side_depths else []
        return f"len={view.committed_len} uncached={view.num_uncached} nodes={view.num_nodes} depth={view.depth} {' '.join(flags)}".rstrip()

    def event(self, command: str, who: str, given: dict[str, str]) -> VerifierEvent:
        now = self.now_us
        inc = int(given.get("inc", "1"))
        match command:
            case "join":
                return DrafterJoined(who, now)
            case "lose":
                return DrafterLost(who, "gone", now)
            case "opened":
                return DrafterFrameArrived(who, Opened(1, inc, 0), now)
            case "refused":
                return DrafterFrameArrived(who, Refused(1, inc, "full"), now)
            case "close":
                return DrafterFrameArrived(who, Close(1, inc, CloseReason[given["reason"]]), now)
            case "malformed":
                return DrafterFrameMalformed(who, inc, "tail.parents: has 1 entries but tokens has 2", now)
            case "tail":
                return DrafterFrameArrived(who, self.tail(inc, given), now)
            case "plan":
                bounds = int(given.get("feed", "64")), int(given.get("nodes", "16"))
                return RoundPlanned(*bounds, now, given.get("lookup") == "yes", int(given.get("sides", "0")))
            case "verified":
                verdict = Verdict(tuple(numbers(given.get("path", ""))), int(given["pick"]), given.get("bonus") == "yes")
                return RoundVerified(verdict, 100, now)
            case "chunk":
                return RoundVerified(None, 100, now)
            case "append":
                return TokensAppended(array(given["tokens"]), now)
            case "cancel":
                return CancelRequested("the client left", now)
        raise AssertionError(f"unknown command {command}")

    def tail(self, inc: int, given: dict[str, str]) -> Tail:
        tokens, first, base = numbers(given.get("tokens", "")), int(given.get("first", "0")), int(given["base"])
        chain = ",".join(str(first - 1 + at) for at in range(len(tokens)))
        truth = self.session.prefix.slice(0, base)
        stated = int(given.get("hash", extend_hash(0, truth)))
        return Tail(
            session=int(given.get("session", "1")),
            incarnation=inc,
            tree_id=int(given.get("tree", "0")),
            first_node=first,
            base=base,
            prefix_hash=stated,
            tokens=np.array(tokens, np.int32),
            parents=array(given.get("parents", chain)),
            end=TailEnd[given.get("end", "MORE")],
            source="lab",
            draft_us=10,
            begin_ns=0,
            end_ns=10_000,
            hedge_us=int(given.get("hedge_us", "0")),
        )


def describe(effect: VerifierEffect) -> str:
    match effect:
        case Verify():
            tree = f"tokens={shown(effect.tree.tokens)} parents={shown(effect.tree.parents)}" if effect.tree.num_nodes else "no guesses"
            return f"verify feed={shown(effect.committed)} {tree}{'' if effect.wanted else ' (no pick)'}"
        case Keep():
            return f"keep {shown(effect.path)}"
        case Emit():
            return f"emit {' '.join(f'{token}:{origin.name}' for token, origin in zip(effect.tokens, effect.origins, strict=True))}"
        case Finish():
            return f"finish {effect.reason.name}{': ' + effect.detail if effect.detail else ''}"
        case SendToDrafter(drafter, Open() as frame):
            hedge = f" hedge={frame.limits.hedge_nodes}" if frame.limits.hedge_nodes else ""
            return f"to {drafter}: open inc={frame.incarnation} tokens={shown(frame.tokens)} until={frame.draft_until}{hedge}"
        case SendToDrafter(drafter, Commit() as frame):
            truth = f"begin={frame.begin} tokens={shown(frame.tokens)} accepted={frame.num_accepted}"
            hedge = f" hedge={frame.hedge_nodes}" if frame.hedge_nodes else ""
            return f"to {drafter}: commit {truth} until={frame.draft_until}{hedge}"
        case SendToDrafter(drafter, Close() as frame):
            return f"to {drafter}: close inc={frame.incarnation} {frame.reason.name}{': ' + frame.detail if frame.detail else ''}"
    raise AssertionError(effect)


def replay(text: str) -> str:
    """The transcript with the effects as they are now; comments and blank lines stay."""
    lab = Lab({})
    output: list[str] = []
    for block in text.strip().split("\n\n"):
        lines = block.splitlines()
        comments = [line for line in lines if line.startswith("#")]
        rest = [line for line in lines if not line.startswith("#")]
        if not rest:
            output.append("\n".join(comments))
            continue
        command, *words = rest[0].split()
        who = next((word for word in words if "=" not in word), "")
        given = dict(word.split("=", 1) for word in words if "=" in word)
        if command == "new":
            lab = Lab(given)
            shown_state = lab.state()
        else:
            shown_state = lab.run(command, who, given)
        output.append("\n".join([*comments, rest[0], "----", shown_state]))
    return "\n\n".join(output) + "\n"


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.txt")), ids=lambda path: path.stem)
def test_transcript(path: Path) -> None:
    actual = replay(path.read_text())
    if os.environ.get("REWRITE") == "1":
        path.write_text(actual)
    assert actual == path.read_text()


def test_transcripts_exist() -> None:
    assert len(list(FOLDER.glob("*.txt"))) >= 12
