"""What the chaos driver is made of: its schedule, its links, and which fault a client's wait is put down to."""

from __future__ import annotations

import asyncio
import itertools
import socket
import struct
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress

import pytest

from described_keys import described_keys
from outrider_bench.chaos.askers import Harvest
from outrider_bench.chaos.driver import MUST_BE_NONE, QUICK_FAULTS
from outrider_bench.chaos.phase import Phase, tokens_differing
from outrider_bench.chaos.report import make_report
from outrider_bench.chaos.schedule import LEAST_GAP_S, MOMENTARY, MOST_GAP_S, SHARES, Kind, make_lone_schedule, make_schedule
from outrider_bench.chaos.site import Drain
from outrider_bench.chaos.stalls import JUST_BEFORE_S, Gap, Stretch, Struck, calm_waits, longest_by_kind, stalls_by_kind
from outrider_bench.chaos.wire import Wire, Wires
from outrider_bench.machine import Machine

HERE = Machine("127.0.0.15")  # where nobody else takes a port between its choice and its use
WAIT_S = 30.0
SILENCE_S = 0.2  # how long nothing must come; longer makes the test surer, never wrong


def test_a_schedule_is_its_seed_and_has_every_kind_in_its_share() -> None:
    schedule = make_schedule(200, seed=7)
    assert schedule == make_schedule(200, seed=7)
    assert schedule != make_schedule(200, seed=8)
    counts = Counter(fault.kind for fault in schedule)
    assert sum(SHARES.values()) == 100
    assert counts == {kind: 2 * share for kind, share in SHARES.items()}
    assert counts[Kind.KILL_VERIFIER] >= 60
    assert min(counts[Kind.KILL_COORDINATOR], counts[Kind.DRAIN_VERIFIER], counts[Kind.DRAIN_DRAFTER]) >= 8
    assert counts[Kind.STOP_VERIFIER] + counts[Kind.STOP_DRAFTER] >= 20
    assert min(counts[Kind.KILL_GATEWAY], counts[Kind.REPLACE_VERIFIER]) >= 8
    assert all(LEAST_GAP_S <= fault.gap_s <= MOST_GAP_S for fault in schedule)
    assert all((fault.lasts_s > 0.0) is not (fault.kind in MOMENTARY) for fault in schedule)


def test_a_lone_schedule_has_drafters_die_and_stop_in_turns_each_fault_over_before_the_next() -> None:
    schedule = make_lone_schedule(5, seed=7)
    assert schedule == make_lone_schedule(5, seed=7)
    assert [fault.kind for fault in schedule] == [Kind.KILL_DRAFTER, Kind.STOP_DRAFTER] * 2 + [Kind.KILL_DRAFTER]
    assert all(later.gap_s >= before.lasts_s + 1.0 for before, later in itertools.pairwise(schedule))


def test_a_short_schedule_leaves_none_to_chance() -> None:
    schedule = make_schedule(QUICK_FAULTS, seed=1)
    assert len(schedule) == QUICK_FAULTS == len(Kind)
    assert {fault.kind for fault in schedule} == set(Kind)


KILLED = Struck(Kind.KILL_DRAFTER, 10.0, 10.0)
STOPPED = Struck(Kind.STOP_VERIFIER, 20.0, 23.0)


@pytest.mark.parametrize(
    ("gap", "kind"),
    [
        (Gap(9.9, 10.3), Kind.KILL_DRAFTER),
        (Gap(10.0 + 0.9 * JUST_BEFORE_S, 10.5), Kind.KILL_DRAFTER),
        (Gap(10.0 + 1.1 * JUST_BEFORE_S, 10.5), None),
        (Gap(9.0, 9.9), None),
        (Gap(22.0, 24.0), Kind.STOP_VERIFIER),
        (Gap(9.0, 21.0), Kind.STOP_VERIFIER),
    ],
)
def test_a_wait_is_put_down_to_the_gravest_fault_that_struck_during_it(gap: Gap, kind: Kind | None) -> None:
    struck_s = {fault.kind: fault.at_s for fault in (KILLED, STOPPED)}
    since_s = gap.length_s if kind is None else gap.end_s - max(gap.begin_s, struck_s[kind])
    assert longest_by_kind([gap], [KILLED, STOPPED]) == {kind: pytest.approx(since_s)}


@pytest.mark.parametrize("other", [Kind.KILL_DRAFTER, Kind.STOP_VERIFIER, Kind.UNPLUG_MACHINE])
def test_a_killed_gateways_waits_are_nobody_elses(other: Kind) -> None:
    killed = Struck(Kind.KILL_GATEWAY, 10.0, 12.0)
    assert longest_by_kind([Gap(9.9, 10.3)], [Struck(other, 10.0, 10.0), killed]) == {Kind.KILL_GATEWAY: pytest.approx(0.3)}


def test_of_many_waits_the_longest_counts() -> None:
    gaps = [Gap(9.9, 10.1), Gap(9.8, 10.4), Gap(0.0, 0.1)]
    assert longest_by_kind(gaps, [KILLED]) == {Kind.KILL_DRAFTER: pytest.approx(0.4), None: pytest.approx(0.1)}


def test_what_was_waited_for_before_a_fault_is_not_its_doing() -> None:
    """Half a second without a message, most of which was over when the drafter died."""
    gaps, again = [Gap(9.5, 10.05)], Struck(Kind.KILL_DRAFTER, 9.7, 9.7)
    assert stalls_by_kind(gaps, [KILLED], CALM)[Kind.KILL_DRAFTER].longest_s == pytest.approx(0.05)
    assert longest_by_kind(gaps, [KILLED]) == {Kind.KILL_DRAFTER: pytest.approx(0.05)}
    assert longest_by_kind(gaps, [KILLED, again]) == {Kind.KILL_DRAFTER: pytest.approx(0.35)}, "of two that met it the first"


CALM = Stretch(0.0, 2.0)


def test_each_fault_counts_its_own_longest_wait_beside_equal_times_of_calm() -> None:
    killed_again = Struck(Kind.KILL_DRAFTER, 30.0, 30.0)
    calm = [Gap(0.1, 0.2), Gap(0.3, 0.7), Gap(1.1, 1.2)]
    struck_gaps = [Gap(9.9, 10.1), Gap(10.0, 10.4), Gap(30.0, 30.2), Gap(19.5, 20.5)]
    stalls = stalls_by_kind([*calm, *struck_gaps], [KILLED, killed_again, STOPPED], CALM)
    assert stalls.keys() == {Kind.KILL_DRAFTER, Kind.STOP_VERIFIER}
    drafter = stalls[Kind.KILL_DRAFTER]
    assert [drafter.median_s, drafter.longest_s] == pytest.approx([0.3, 0.4])
    # Eight times of a quarter of a second, with 0.1, 0.4, 0.2, 0, 0.1, 0, 0 and 0 seconds.
    assert [drafter.calm_median_s, drafter.calm_longest_s] == pytest.approx([0.05, 0.4])
    assert stalls[Kind.STOP_VERIFIER].calm_median_s == pytest.approx(0.4), "the calm is shorter than such a fault: one time"


def test_a_fault_whose_every_wait_is_a_gravers_has_none_of_its_own() -> None:
    both = [Struck(Kind.STOP_VERIFIER, 5.0, 8.0), Struck(Kind.KILL_DRAFTER, 6.0, 6.0), Struck(Kind.UNPLUG_MACHINE, 7.9, 9.0)]
    assert stalls_by_kind([Gap(5.9, 6.1)], both, CALM).keys() == {Kind.STOP_VERIFIER}
    assert stalls_by_kind([Gap(7.9, 8.1)], both, CALM).keys() == {Kind.UNPLUG_MACHINE}


def test_calm_times_are_whole_ones_and_gaps_count_in_all_that_they_meet() -> None:
    assert calm_waits([Gap(-1.0, 0.1), Gap(0.6, 1.4), Gap(1.9, 9.0)], CALM, 0.5) == pytest.approx([0.1, 0.8, 0.4, 7.1])
    assert calm_waits([], CALM, 0.75) == [0.0, 0.0]


def test_missing_and_wrong_tokens_are_counted() -> None:
    assert tokens_differing((1, 2, 3), (1, 2, 3)) == 0
    assert tokens_differing((1, 9, 3), (1, 2, 3)) == 1
    assert tokens_differing((1,), (1, 2, 3)) == 2
    assert tokens_differing((1, 2, 3, 4), (1, 2, 3)) == 1


def test_every_number_of_the_report_is_described() -> None:
    harvest = Harvest([(0, (1, 2))], [(1, "gone")], [Gap(0.1, 0.2), Gap(9.9, 10.3)], 5, 1)
    crowd, alone = (Phase(num, harvest, CALM, [KILLED], 12.0) for num in (16, 1))
    told = make_report(crowd, alone, [(1, 3), (4,)], [Drain("a", 1, 0.5)], [3, 0], {"a": 2})
    assert (told["requests_lost"], told["tokens_differing"], told["leaks"], told["drains_unclean"]) == (2, 2, 2, 1)
    assert (told["requests"], told["failovers"], told["stall_drafter_ms"]) == (4, 2, 300)
    assert (told["zombies"], told["zombies_unaware"]) == (2, 1)
    added_by_the_driver = {"replicas_unknown", "redis_entries", "machines", "facts"}
    assert described_keys("outrider bench chaos") == told.keys() | added_by_the_driver
    assert told.keys() | added_by_the_driver >= set(MUST_BE_NONE)


@pytest.fixture
def wired() -> Iterator[tuple[Wires, Wire]]:
    """A link to whoever sends back what it hears."""
    server = socket.create_server(("127.0.0.1", 0))

    def echo() -> None:
        while True:
            try:
                connection, _ = server.accept()
            except OSError:
                return
            with connection, suppress(ConnectionError):
                while chunk := connection.recv(4096):
                    connection.sendall(chunk)

    threading.Thread(target=echo, daemon=True).start()
    with Wires() as wires:
        yield wires, wires.add(HERE, HERE.free_address(), f"127.0.0.1:{server.getsockname()[1]}")
    server.shutdown(socket.SHUT_RDWR)
    server.close()


def _call(wire: Wire) -> socket.socket:
    host, port = wire.listen.split(":")
    return socket.create_connection((host, int(port)), WAIT_S)


def test_a_cut_link_is_silent_and_what_was_sent_arrives_once_it_is_mended(wired: tuple[Wires, Wire]) -> None:
    wires, wire = wired
    with _call(wire) as client:
        client.sendall(b"one")
        assert client.recv(16) == b"one"
        wires.cut(wire)
        wires.slow(wire, 0.0)  # the next order on the wires' thread comes behind the cut
        client.settimeout(SILENCE_S)
        client.sendall(b"two")
        with pytest.raises(TimeoutError):
            client.recv(16)
        wires.mend(wire)
        client.settimeout(WAIT_S)
        assert client.recv(16) == b"two"


def test_a_slow_link_takes_its_time_each_way(wired: tuple[Wires, Wire]) -> None:
    wires, wire = wired
    with _call(wire) as client:
        client.sendall(b"one")
        assert client.recv(16) == b"one"
        wires.slow(wire, SILENCE_S)
        client.settimeout(1.5 * SILENCE_S)
        client.sendall(b"two")
        with pytest.raises(TimeoutError):
            client.recv(16)
        client.settimeout(WAIT_S)
        assert client.recv(16) == b"two"


def test_the_end_of_one_side_is_the_end_of_the_other(wired: tuple[Wires, Wire]) -> None:
    _, wire = wired
    with _call(wire) as client:
        client.sendall(b"one")
        assert client.recv(16) == b"one"
        client.shutdown(socket.SHUT_WR)
        client.settimeout(WAIT_S)
        with suppress(ConnectionResetError):  # an abrupt end is one, too
            assert client.recv(16) == b""


def test_the_end_of_all_wires_ends_a_call_that_waits_for_a_cut_link(wired: tuple[Wires, Wire]) -> None:
    wires, wire = wired
    wires.cut(wire)
    with _call(wire) as client:
        _end(wires, wire, 0)
        assert client.recv(16) == b""


@pytest.mark.parametrize("num_turns", range(12))
def test_the_end_of_all_wires_may_come_at_any_turn_of_the_end_of_a_call(num_turns: int) -> None:
    """Whom it called hears of it, whatever the wires were about."""
    with socket.create_server(("127.0.0.1", 0)) as server, Wires() as wires:
        server.settimeout(WAIT_S)
        wire = wires.add(HERE, HERE.free_address(), f"127.0.0.1:{server.getsockname()[1]}")
        with _call(wire) as client:
            called, _ = server.accept()
            with called:
                called.settimeout(WAIT_S)
                client.sendall(b"one")
                assert called.recv(16) == b"one"
                _end(wires, wire, num_turns, client)
                with suppress(ConnectionResetError):
                    assert called.recv(16) == b""


def _end(wires: Wires, wire: Wire, num_turns: int, client: socket.socket | None = None) -> None:
    """End a wire that has a call, so many turns of its loop after the client's end."""

    async def end() -> None:
        while not wire._carrying:
            await asyncio.sleep(0)
        if client is not None:
            client.close()
        for _ in range(num_turns):
            await asyncio.sleep(0)
        wire.end()

    asyncio.run_coroutine_threadsafe(end(), wires._loop).result(WAIT_S)


def test_a_caller_that_resets_ends_the_connection_to_whom_it_called() -> None:
    """As a process does that is killed with words unread: else the other side would hold what it had for it."""
    server = socket.create_server(("127.0.0.1", 0))
    server.settimeout(WAIT_S)
    with server, Wires() as wires:
        wire = wires.add(HERE, HERE.free_address(), f"127.0.0.1:{server.getsockname()[1]}")
        client = _call(wire)
        client.sendall(b"one")
        far, _ = server.accept()
        with far:
            far.settimeout(WAIT_S)
            assert far.recv(16) == b"one"
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            client.close()
            with suppress(ConnectionResetError):
                assert far.recv(16) == b""
