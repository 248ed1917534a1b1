"""What replicas ask of a cluster's nodes, and the sentence when no node can give it.

pytest tests/unit/test_replica_demands.py
"""

from __future__ import annotations

import pytest

from outrider.coordinator.demands import demand_of, problem_with
from outrider.coordinator.replica_actor import ReplicaSpec
from outrider.launch.process import ServiceCommand

BIG, SMALL = {"CPU": 8.0, "GPU": 2.0, "fast": 1.0, "memory": 1e9}, {"CPU": 4.0}
NODES = {"big": BIG, "small": SMALL}


def replica(name: str, cpus: float = 0.0, gpus: float = 0.0, node: str = "", **resources: float) -> ReplicaSpec:
    return ReplicaSpec(ServiceCommand(name, ()), cpus, gpus, resources, node)


def test_a_demand_is_what_is_asked_for_and_no_more() -> None:
    assert demand_of(replica("v", gpus=0.5, fast=1.0)) == {"GPU": 0.5, "fast": 1.0}
    assert demand_of(replica("v")) == {}


@pytest.mark.parametrize(
    "specs",
    [
        (),
        (replica("v", gpus=2.0, fast=1.0),),
        (replica("v", cpus=8.0), replica("w", cpus=8.0)),
        (replica("v", gpus=1.5, node="big"), replica("w", gpus=0.5, node="big")),
        (replica("v", node="small"), replica("w", cpus=4.0, node="small"), replica("x", cpus=8.0, node="big")),
        (*(replica(name, gpus=0.6, node="big") for name in "vw"), *(replica(name, gpus=0.4, node="big") for name in "xy")),
        tuple(replica(f"v{number}", gpus=0.1, node="big") for number in range(20)),
    ],
    ids=[
        "nobody",
        "on one of them",
        "one after the other",
        "parts of one",
        "each its own",
        "parts of two",
        "parts whose sum is no binary fraction",
    ],
)
def test_what_some_node_has_is_no_problem(specs: tuple[ReplicaSpec, ...]) -> None:
    assert problem_with(specs, NODES) == ""


@pytest.mark.parametrize(
    ("specs", "told"),
    [
        ((replica("v", gpus=3.0),), "v asks for 3 GPU on one node, and none has so much: they have 2 GPU; 0 GPU"),
        ((replica("v", slow=1.0),), "v asks for 1 slow on one node, and none has so much: they have 0 slow; 0 slow"),
        ((replica("v", gpus=1.0, node="small"),), "asked for on one node: 1 GPU (v); it has 0 GPU in all"),
        (
            (replica("v", gpus=0.6, node="big"), replica("w", gpus=0.6, node="big"), replica("x", gpus=0.6, node="big")),
            "asked for on one node: 1.8 GPU, of which no two parts of more than a half share a GPU; it has 2 in all",
        ),
        (
            (replica("v", gpus=2.0, node="big"), replica("w", gpus=0.5, node="big")),
            "asked for on one node: 2.5 GPU (v, w); it has 2 GPU in all",
        ),
        (
            (replica("v", gpus=2.0, node="big"), replica("w", gpus=0.0001, node="big")),
            "asked for on one node: 2.0001 GPU (v, w); it has 2 GPU in all",
        ),
        ((replica("v", fast=1.0, node="gone"),), "asked for on one node: 1 fast (v); it has 0 fast in all"),
    ],
    ids=["too many", "unheard of", "bound", "parts that do not share", "bound together", "a hair too much", "node is gone"],
)
def test_what_no_node_has_is_said_with_what_they_have(specs: tuple[ReplicaSpec, ...], told: str) -> None:
    assert problem_with(specs, NODES) == told
