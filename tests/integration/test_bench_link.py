"""Timing messages to a real drafter, alone and behind a relay: a delay is in every trip, and the drafter is left as it was."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from drafter_service.settings import parse_settings
from fakes_models import make_model
from outrider.cli.connection import Connection
from outrider.engine.load import load_engine
from outrider.launch.process import ServiceCommand, ServiceProcess
from outrider.rpc.convert.identity import identity_to_proto
from outrider_bench.link import round_trips_us

START_S = 120.0
DELAY_US = 20_000


@pytest.mark.slow
def test_a_trip_holds_the_delay_both_ways_and_leaves_no_session(tmp_path: Path) -> None:
    make_model("llama", tmp_path / "model")
    (tmp_path / "texts.json").write_text('{"texts": [[1, 2, 3]]}')
    near, far = f"unix:{tmp_path}/near.sock", f"unix:{tmp_path}/far.sock"
    options = ["--model", str(tmp_path / "model"), "--listen", far, "--kv-mib", "16", "--no-probe", "--source", "replay"]
    options += ["--replay-texts", str(tmp_path / "texts.json"), "--replay-step-us", "500000"]
    wire = ("-m", "outrider_bench.relay", "--listen", near, "--to", far, "--delay-us", str(DELAY_US))
    identity = identity_to_proto(load_engine(parse_settings(options).engine).identity)
    started: list[ServiceProcess] = []
    try:
        for command in (ServiceCommand("drafter", ("-m", "drafter_service", *options)), ServiceCommand("relay", wire)):
            started.append(ServiceProcess(command, tmp_path / f"{command.name}.log"))
            started[-1].wait_ready(time.monotonic() + START_S)
        direct, delayed = round_trips_us(far, identity, 4), round_trips_us(near, identity, 3)
        assert len(direct) == 4
        assert len(delayed) == 3
        assert min(direct) > 0
        assert max(direct) < 500_000  # nothing was guessed, so that no pace was kept
        assert min(delayed) >= 2 * DELAY_US
        deadline_s = time.monotonic() + START_S
        with Connection(far) as drafter:
            while drafter.drafter_info().live.sessions:  # the last Close is taken a moment after the stream's end
                assert time.monotonic() < deadline_s
    finally:
        for process in reversed(started):
            process.stop(5.0)


def test_an_address_without_a_drafter_is_an_error(tmp_path: Path) -> None:
    make_model("llama", tmp_path / "model")
    identity = identity_to_proto(load_engine(parse_settings(["--model", str(tmp_path / "model"), "--listen", "unix:x"]).engine).identity)
    with pytest.raises(Exception, match="UNAVAILABLE"):
        round_trips_us(f"unix:{tmp_path}/nobody.sock", identity)
