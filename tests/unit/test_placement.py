"""Where a request goes: never where it cannot, always where a token is expected soonest, whatever order the fleet joined in."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fakes_fleet import KNEE, STEP_US, drafter, identity, table_of, verifier, wish
from outrider.coordinator.drafter_choice import NOT_WARM
from outrider.coordinator.fleet_table import FleetTable
from outrider.coordinator.placement import MAX_ALTERNATIVES, MAX_DRAFTERS, MAX_LOOKED_AT, PAYS_BELOW, TRIAL_EVERY, _Search, place, room_for
from outrider.coordinator.round_times import DRAFT_LENS, ROUND_OVERHEAD_US, drafted_us, plain_us, rows_of_steps
from outrider.coordinator.step_times import GRID_ROWS, sampled, step_us
from outrider.coordinator.verifier_table import MAX_KEPT_PAIRS
from outrider.errors import Overloaded, Unavailable
from outrider.session.pacing.contract import CostCurve
from outrider.session.pacing.round_model import best_ahead_course, measured_rates, plain_course, serial_courses
from outrider.types.fleet import PairMeasurement, PlacementWish, Replica, Role
from outrider.types.identity import incompatibility
from outrider.types.text_room import FIRST_ROOM

VOCABULARIES = ("vocabulary", "another")
NUM_FLEETS = 100  # of a property that takes tens of milliseconds for one
NEAR = PairMeasurement(200, 0.8, True)

# --- any fleet, any wish -----------------------------------------------------------------------------------------------------


# Strategies are made once: drawing one that was made within a draw takes several times as long.
ENDPOINTS = {kind: [f"{kind}{at}:1" for at in range(6)] for kind in "vd"}
PAIR_MEASUREMENTS = st.builds(
    PairMeasurement, st.integers(0, 20_000), st.one_of(st.none(), st.floats(0.0, 1.0)), st.booleans(), st.floats(0.0, 1.0)
)


def scaled(num_points: int, scale: float) -> tuple[tuple[int, float], ...]:
    return tuple((rows, us * scale) for rows, us in KNEE[:num_points])


COSTS = st.builds(scaled, st.integers(0, 4), st.sampled_from((0.5, 1.0, 2.0)))
VERIFIERS = st.fixed_dictionaries(
    {
        "identity": st.builds(
            lambda vocabulary, bits, revision: identity(vocabulary, bits, noise_revision=revision),
            st.sampled_from(VOCABULARIES),
            st.sampled_from(("bits", "others")),
            st.integers(1, 2),
        ),
        "draining": st.booleans(),
        "num_sessions": st.integers(0, 17),
        "kv_blocks_used": st.integers(0, 60),
        "kv_blocks_total": st.sampled_from((0, 20, 60)),
        "cost": COSTS,
        "queue_us": st.sampled_from((0.0, 1e5)),
        "pairs": st.dictionaries(st.sampled_from(ENDPOINTS["d"]), PAIR_MEASUREMENTS, max_size=4),
    }
)
DRAFTERS = st.fixed_dictionaries(
    {
        "identity": st.builds(
            lambda vocabulary, revision: identity(vocabulary, noise_revision=revision), st.sampled_from(VOCABULARIES), st.integers(1, 2)
        ),
        "draining": st.booleans(),
        "num_sessions": st.integers(0, 17),
        "draft_us": st.sampled_from((0.0, 300.0, 1_000.0, 9_000.0)),
        "read_us": st.sampled_from((0.0, 20.0, 300.0, 5_000.0)),
    }
)
WARM = st.dictionaries(st.integers(0, 5), st.sampled_from((0.5, 1.0)), max_size=3)


def warm_among(table: FleetTable, drawn: Mapping[int, float]) -> dict[int, float]:
    """Of these drafters, those that there are."""
    return {row: share for row, share in drawn.items() if row < table.drafters.num_rows}


def fleet_of(verifiers: list[dict[str, Any]], drafters: list[dict[str, Any]]) -> list[Replica]:
    return [
        *(verifier(f"v{at}", **parts) for at, parts in enumerate(verifiers)),
        *(drafter(f"d{at}", **parts) for at, parts in enumerate(drafters)),
    ]


FLEETS = st.builds(fleet_of, st.lists(VERIFIERS, max_size=6), st.lists(DRAFTERS, max_size=6))
WISHES = st.builds(
    wish,
    num_samples=st.integers(1, 3),
    prefix_len=st.sampled_from((1, 100, 400)),
    fingerprint=st.sampled_from(("", "", "bits", "nobody's")),
    exclude=st.frozensets(st.sampled_from([*ENDPOINTS["v"], *ENDPOINTS["d"]]), max_size=4),
    wants_drafts=st.booleans(),
)


def takes(replica: Replica, asked: PlacementWish) -> bool:
    return (
        not replica.draining and replica.endpoint not in asked.exclude and replica.num_sessions + asked.num_samples <= replica.max_sessions
    )


def takes_all_of(replica: Replica, asked: PlacementWish) -> bool:
    """A verifier that may be chosen, by the plainest reading of the rules."""
    most = -(-(asked.prefix_len + asked.max_tokens) // replica.block_len)
    first = asked.num_samples * -(-(asked.prefix_len + min(FIRST_ROOM, asked.max_tokens)) // replica.block_len)
    has_blocks = not replica.kv_blocks_total or (replica.kv_blocks_used + first <= replica.kv_blocks_total >= most)
    return takes(replica, asked) and has_blocks and asked.fingerprint in ("", replica.identity.fingerprint)


@settings(max_examples=NUM_FLEETS)
@given(FLEETS, WISHES, WARM)
def test_only_who_may_take_it_is_chosen_and_somebody_is_whenever_anybody_may(
    fleet: list[Replica], asked: PlacementWish, drawn: dict[int, float]
) -> None:
    table = table_of(fleet)
    by_endpoint = {replica.endpoint: replica for replica in fleet}
    able = {one.endpoint for one in fleet if one.role is Role.VERIFIER and takes_all_of(one, asked)}
    try:
        placed = place(table, asked, {}, warm_among(table, drawn))
    except (Unavailable, Overloaded):
        assert not able
        return
    chosen = by_endpoint[placed.verifier]
    assert {placed.verifier, *placed.alternatives} <= able
    assert len(placed.alternatives) == len(set(placed.alternatives)) <= MAX_ALTERNATIVES
    assert placed.verifier not in placed.alternatives
    assert {by_endpoint[one].identity.fingerprint for one in placed.alternatives} <= {chosen.identity.fingerprint}
    assert len(placed.drafters) == len(set(placed.drafters)) <= (MAX_DRAFTERS if asked.wants_drafts else 0)
    for endpoint in placed.drafters:
        found = by_endpoint[endpoint]
        assert found.role is Role.DRAFTER
        assert takes(found, asked)
        assert incompatibility(found.identity, chosen.identity) is None


@settings(max_examples=100)
@given(FLEETS, WISHES, st.randoms(use_true_random=False))
def test_the_order_in_which_the_fleet_joined_changes_nothing(fleet: list[Replica], asked: PlacementWish, order: random.Random) -> None:
    shuffled = list(fleet)
    order.shuffle(shuffled)
    assert outcome(fleet, asked) == outcome(fleet, asked) == outcome(shuffled, asked)


def outcome(fleet: list[Replica], asked: PlacementWish) -> object:
    try:
        return place(table_of(fleet), asked)
    except (Unavailable, Overloaded) as refusal:
        return type(refusal), str(refusal)


@settings(max_examples=NUM_FLEETS)
@given(FLEETS, WISHES, st.integers(0, 5), st.floats(0.3, 1.0))
def test_a_verifier_better_than_one_that_is_there_never_makes_it_slower(
    fleet: list[Replica], asked: PlacementWish, at: int, factor: float
) -> None:
    known = [replica for replica in fleet if replica.role is Role.VERIFIER]
    asked = replace(asked, exclude=frozenset())
    try:
        before = place(table_of(fleet), asked)
    except (Unavailable, Overloaded):
        return
    model = known[at % len(known)]
    pairs = {end: replace(pair, round_trip_us=pair.round_trip_us and max(1, pair.round_trip_us // 2)) for end, pair in model.pairs.items()}
    cost = tuple((rows, us * factor) for rows, us in model.cost)
    better = replace(model, replica_id="better", endpoint="better:1", queue_us=0.0, cost=cost, pairs=pairs, num_sessions=0)
    assert place(table_of([*fleet, better]), asked).token_us <= before.token_us


@settings(max_examples=NUM_FLEETS)
@given(FLEETS, WISHES, WARM)
def test_no_verifier_is_better_than_its_bound(fleet: list[Replica], asked: PlacementWish, drawn: dict[int, float]) -> None:
    check_bounds(table_of(fleet), asked, drawn)


@settings(max_examples=NUM_FLEETS)
@given(FLEETS, WISHES, WARM, st.dictionaries(st.integers(0, 5), st.floats(0.0, 1.0), max_size=3))
def test_a_warm_drafter_never_makes_it_slower(
    fleet: list[Replica], asked: PlacementWish, drawn: dict[int, float], warm: dict[int, float]
) -> None:
    table = table_of(fleet)
    warm = {row: share for row, share in warm.items() if row < table.verifiers.num_rows}
    try:
        cold_us = place(table, asked, warm).token_us
    except (Unavailable, Overloaded):
        return
    assert place(table, asked, warm, warm_among(table, drawn)).token_us <= cold_us


@pytest.mark.parametrize("acceptance", [None, 0.2, 0.95])
@pytest.mark.parametrize("round_trip_us", [0, 20, 15_000])
def test_the_bound_of_a_measured_pair_holds(acceptance: float | None, round_trip_us: int) -> None:
    pairs = {"d0:1": PairMeasurement(round_trip_us, acceptance), "d1:1": PairMeasurement(5_000, 0.5)}
    check_bounds(table_of([verifier("v0", pairs=pairs), drafter("d0"), drafter("d1")]), wish())


def check_bounds(table: FleetTable, asked: PlacementWish, drawn: Mapping[int, float] = NOT_WARM) -> None:
    search = _Search(table, asked, np.flatnonzero(room_for(table, asked).roomy), {}, warm_among(table, drawn))
    if len(search._rows):
        looked = search._look()
        assert (looked.token_us >= search._bounds).all()


def test_the_best_is_found_among_more_than_are_looked_at_together() -> None:
    """Bounds are built of the best of every pair, so most are too good: the search must not end at the best bound."""
    far = [f"d{at}:1" for at in range(2)]
    tempting = {far[0]: PairMeasurement(10, 0.01), far[1]: PairMeasurement(900_000, 0.9)}  # near and useless, useful and far
    fleet = [drafter("d0"), drafter("d1"), *(verifier(f"v{at}", pairs=tempting) for at in range(MAX_LOOKED_AT // 2))]
    plain = place(table_of(fleet), wish())
    assert not plain.drafters
    best = verifier("best", pairs={far[0]: PairMeasurement(9_000, 0.75)})
    assert place(table_of([*fleet, best]), wish()).verifier == "best:1"


# --- who is chosen --------------------------------------------------------------------------------------------------------


def test_the_quicker_verifier_is_chosen_until_its_load_makes_it_the_slower_one() -> None:
    quick, slow = verifier("quick", cost=((1, 8_000.0), (16, 16_000.0))), verifier("slow", cost=((1, 10_000.0), (16, 20_000.0)))
    assert place(table_of([quick, slow]), wish()).verifier == "quick:1"
    assert place(table_of([replace(quick, num_sessions=12), slow]), wish()).verifier == "slow:1"
    assert place(table_of([replace(quick, queue_us=2e6), slow]), wish()).verifier == "slow:1"


def test_equally_quick_verifiers_are_taken_by_load() -> None:
    fleet = [verifier(f"v{at}", num_sessions=3 if at != 5 else 2, cost=((1, STEP_US),)) for at in range(8)]
    assert place(table_of(fleet), wish()).verifier == "v5:1"


def test_a_pair_that_is_near_and_agrees_is_chosen() -> None:
    fleet = [verifier("v0", pairs={"d0:1": replace(NEAR, acceptance_rate=0.3)}), verifier("v1", pairs={"d0:1": NEAR}), drafter("d0")]
    placed = place(table_of(fleet), wish())
    assert (placed.verifier, placed.drafters) == ("v1:1", ("d0:1",))
    fleet = [verifier("v0", pairs={"d0:1": NEAR}), verifier("v1", pairs={"d0:1": replace(NEAR, round_trip_us=30_000)}), drafter("d0")]
    assert place(table_of(fleet), wish()).verifier == "v0:1"


def test_a_drafter_that_never_met_the_verifier_is_worth_a_try() -> None:
    placed = place(table_of([verifier("v0", pairs={"d0:1": PairMeasurement(200, 0.2)}), drafter("d0"), drafter("d1")]), wish())
    assert placed.drafters[0] == "d1:1"


QUICK = ((1, 300.0), (1024, 300.0))  # at two milliseconds there and back no drafter could help such a target


def ids(num: int) -> list[str]:
    return [f"request {at}" for at in range(num)]


def tried(fleet: list[Replica], num: int, **fields: Any) -> dict[str, tuple[str, ...]]:
    """Requests that were given drafters, of so many."""
    table = table_of(fleet)
    placed = {name: place(table, wish(request_id=name, **fields)) for name in ids(num)}
    return {name: one.drafters for name, one in placed.items() if one.drafters}


def test_pairs_that_never_met_are_tried_now_and_then_and_used_once_they_prove_near() -> None:
    fleet = [verifier("v0", cost=QUICK), *(drafter(f"d{at}", draft_us=100.0) for at in range(12))]
    found = tried(fleet, 64 * TRIAL_EVERY)
    assert 64 / 2 < len(found) < 64 * 2, "a share of all, told by their ids"
    some = tried(fleet[::-1], 16 * TRIAL_EVERY)
    assert some == {name: found[name] for name in ids(16 * TRIAL_EVERY) if name in found}
    assert len(some) > 16 / 2
    assert set(found.values()) == {(f"d{at}:1",) for at in range(12)}, "each has its turn, not the quickest only"
    one = wish(request_id=next(iter(found)))
    assert not place(table_of(fleet), one).drafts_off
    assert place(table_of(fleet), one).decode_us == 0.0
    near = [verifier("v0", cost=QUICK, pairs={"d5:1": PairMeasurement(100, 0.9)}), *fleet[1:]]
    assert {drafters[0] for drafters in tried(near, 40).values()} == {"d5:1"}
    assert len(tried(near, 40)) == 40
    far = [verifier("v0", cost=QUICK, pairs={f"d{at}:1": PairMeasurement(9_000, 0.6) for at in range(12)}), *fleet[1:]]
    assert tried(far, 16 * TRIAL_EVERY) == {}, "all have been measured"


def test_nobody_is_tried_whom_no_distance_could_make_useful() -> None:
    num = 8 * TRIAL_EVERY
    assert tried([verifier("v0", cost=QUICK), drafter("d0", draft_us=100.0)], num)
    for useless in ({"draft_us": 9_000.0}, {"draining": True}, {"num_sessions": 16}, {"identity": identity("another vocabulary")}):
        assert tried([verifier("v0", cost=QUICK), drafter("d0", **{"draft_us": 100.0, **useless})], num) == {}
    fleet = [verifier("v0", cost=QUICK), drafter("d0", draft_us=100.0)]
    assert tried(fleet, num, wants_drafts=False) == tried(fleet, num, exclude=frozenset({"d0:1"})) == {}


def test_a_trial_takes_no_place_of_the_best_drafter() -> None:
    known = {f"d{at}:1": NEAR for at in range(2)}
    fleet = [verifier("v0", pairs=known), *(drafter(f"d{at}", draft_us=500.0) for at in range(3))]
    found = tried(fleet, 16 * TRIAL_EVERY)
    assert {drafters[0] for drafters in found.values()} == {"d0:1"} or {drafters[0] for drafters in found.values()} == {"d1:1"}
    assert any(drafters[1:] == ("d2:1",) for drafters in found.values())
    assert all(len(drafters) <= MAX_DRAFTERS for drafters in found.values())


def test_drafts_are_off_only_where_drafters_are_known_and_would_not_pay() -> None:
    useless, full = drafter("d0", draft_us=9_500.0), drafter("d0", num_sessions=16)
    assert place(table_of([verifier("v0"), useless]), wish()).drafts_off
    assert not place(table_of([verifier("v0")]), wish()).drafts_off
    assert not place(table_of([verifier("v0"), full]), wish()).drafts_off
    assert not place(table_of([verifier("v0"), useless]), wish(wants_drafts=False)).drafts_off
    assert not place(table_of([verifier("v0"), drafter("d0")]), wish()).drafts_off


@pytest.mark.parametrize("late", [0.0, 0.9])
def test_a_drafter_that_is_busy_or_late_comes_after_one_that_is_not(late: float) -> None:
    tired = drafter("d0", num_sessions=0 if late else 6)
    pairs = {"d0:1": replace(NEAR, late_share=late), "d1:1": NEAR}
    placed = place(table_of([verifier("v0", pairs=pairs), tired, drafter("d1", draft_us=1_200.0)]), wish())
    assert placed.drafters[0] == "d1:1"


def test_a_second_drafter_is_taken_only_while_it_is_spare() -> None:
    fleet = [verifier("v0"), drafter("d0"), drafter("d1", draft_us=1_100.0), drafter("d2", draft_us=1_200.0)]
    assert place(table_of(fleet), wish()).drafters == ("d0:1", "d1:1")
    busy = [replace(one, num_sessions=9, draft_us=one.draft_us / 4) if one.role is Role.DRAFTER else one for one in fleet]
    assert place(table_of(busy), wish()).drafters == ("d0:1",)


@pytest.mark.parametrize(
    "unfit",
    [
        {"draining": True},
        {"num_sessions": 15},
        {"identity": identity("another vocabulary")},
        {"identity": identity(noise_revision=2)},
        {"endpoint": "excluded:1"},
    ],
)
def test_a_drafter_that_is_quicker_but_unfit_is_left_out(unfit: dict[str, Any]) -> None:
    asked = wish(num_samples=2, exclude=frozenset({"excluded:1"}))
    quick = drafter("quick", draft_us=10.0, **unfit)
    for pairs in ({}, {quick.endpoint: NEAR}):
        fleet = [verifier("v0", pairs=pairs), quick, drafter("d1")]
        assert place(table_of(fleet), asked).drafters == ("d1:1",)


def test_no_drafter_is_taken_where_drafting_would_not_pay() -> None:
    slow = [verifier("v0"), drafter("d0", draft_us=9_500.0)]
    placed = place(table_of(slow), wish())
    assert (placed.drafters, placed.alternatives) == ((), ())
    assert "would not pay" in placed.reason
    assert "no drafter fits" in place(table_of([verifier("v0")]), wish()).reason
    assert place(table_of([verifier("v0"), drafter("d0")]), wish(wants_drafts=False)).drafters == ()


def test_a_saturated_verifier_decodes_plainly() -> None:
    """Rows beyond the knee cost in proportion: guesses of everybody would make everybody's step longer."""
    crowded = verifier("v0", num_sessions=60, max_sessions=64)
    assert place(table_of([crowded, drafter("d0", draft_us=3_000.0)]), wish()).drafters == ()
    assert place(table_of([replace(crowded, num_sessions=0), drafter("d0", draft_us=3_000.0)]), wish()).drafters


def test_an_unmeasured_verifier_and_drafter_can_be_chosen() -> None:
    placed = place(table_of([verifier("v0", cost=()), drafter("d0", draft_us=0.0)]), wish())
    assert placed.drafters == ("d0:1",)
    assert 0.0 < placed.token_us < 1e6


def test_alternatives_are_found_behind_any_number_of_better_ones_of_other_bits() -> None:
    def at_speed(name: str, step_us: float, fingerprint: str) -> Replica:
        one = verifier(name, cost=((1, step_us),))
        return replace(one, identity=replace(one.identity, fingerprint=fingerprint))

    others = [at_speed(f"o{at}", 2 * STEP_US, "other") for at in range(MAX_LOOKED_AT + 8)]
    slow = [at_speed(f"s{at}", (3 + at) * STEP_US, "rare") for at in range(2)]
    placed = place(table_of([*others, *slow, at_speed("best", STEP_US, "rare")]), wish())
    assert (placed.verifier, placed.alternatives) == ("best:1", ("s0:1", "s1:1"))


def test_alternatives_are_the_next_best_of_the_same_bits() -> None:
    slower = [verifier(f"v{at}", cost=((1, STEP_US * (1 + at / 10)),)) for at in range(6)]
    slower[1] = replace(slower[1], identity=identity(fingerprint="others"))
    slower[3] = replace(slower[3], num_sessions=16)
    placed = place(table_of(slower), wish())
    assert (placed.verifier, placed.alternatives) == ("v0:1", ("v2:1", "v4:1", "v5:1"))


# --- refusals -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        wish(fingerprint="unknown"),
        wish(exclude=frozenset({"v0:1"})),
        wish(prefix_len=30_000, max_tokens=3_000),  # longer than the context
        wish(num_samples=17),
        wish(prefix_len=32_000, max_tokens=700, num_samples=5),  # more blocks than there are
    ],
)
def test_nobody_fits(asked: PlacementWish) -> None:
    with pytest.raises(Unavailable, match="no verifier"):
        place(table_of([verifier("v0"), drafter("d0")]), asked)


@pytest.mark.parametrize("full", [{"num_sessions": 16}, {"kv_blocks_used": 9_990}])
def test_all_that_fit_are_full(full: dict[str, int]) -> None:
    fleet = [verifier("v0", **full), verifier("v1", draining=True), verifier("v2", identity=identity(fingerprint="others"))]
    with pytest.raises(Overloaded, match="full"):
        place(table_of(fleet), wish(fingerprint="bits"))


def test_an_empty_fleet_is_no_crash() -> None:
    with pytest.raises(Unavailable):
        place(table_of([]), wish())


# --- the model of rounds --------------------------------------------------------------------------------------------------

CURVE = CostCurve(KNEE)


@pytest.mark.parametrize("num_sessions", [1, 4, 40])
@pytest.mark.parametrize("draft_us", [100.0, 1_000.0, 6_000.0])
@pytest.mark.parametrize("round_trip_us", [100.0, 4_000.0])
@pytest.mark.parametrize("acceptance", [0.2, 0.6, 0.9])
def test_no_promise_beats_the_pacing_model_and_few_are_far_from_it(
    num_sessions: int, draft_us: float, round_trip_us: float, acceptance: float
) -> None:
    rates = measured_rates(CURVE, num_sessions, draft_us, round_trip_us / 2, ROUND_OVERHEAD_US)
    courses = [*serial_courses(rates, acceptance, 1.0), best_ahead_course(rates, acceptance, 1.0)]
    best_us = 1.0 / max(course.tokens_per_us for course in courses)
    sessions = np.array([num_sessions])
    steps = step_us(sampled(KNEE)[None], rows_of_steps(sessions))
    mine = float(drafted_us(steps, sessions, np.array([[draft_us]]), np.array([[round_trip_us]]), np.array([[acceptance]]))[0, 0])
    assert plain_us(steps)[0] == pytest.approx(1.0 / plain_course(rates).tokens_per_us)
    plain = float(plain_us(steps)[0])
    assert best_us * (1 - 1e-3) <= mine  # which leaves out guesses that are hardly ever reached
    assert min(mine, plain) <= 1.2 * best_us


def test_a_step_of_any_rows_is_read_off_the_grid() -> None:
    rows = np.array([[1, 5, 32, 40, 700, int(GRID_ROWS[-1]) * 2]])
    assert step_us(sampled(KNEE)[None], rows)[0] == pytest.approx(CURVE.verify_us_of(rows[0]), rel=0.02)
    assert float(sampled(((1, 5.0), (8, 4.0)))[-1]) == 4.0  # a last slope that falls is not followed


def test_what_pays_is_better_than_plain_by_the_margin() -> None:
    assert len(DRAFT_LENS) < MAX_KEPT_PAIRS
    gains = []
    for draft_us in np.geomspace(500.0, 20_000.0, 12):
        drafted = place(table_of([verifier("v0"), drafter("d0", draft_us=float(draft_us))]), wish())
        plain = place(table_of([verifier("v0")]), wish())
        gains.append(drafted.token_us / plain.token_us)
        assert bool(drafted.drafters) == (drafted.token_us < plain.token_us)
    assert gains == sorted(gains)
    assert gains[-1] == 1.0 > PAYS_BELOW > gains[0]
