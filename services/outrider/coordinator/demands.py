"""What replicas ask of Ray's nodes, and why a node cannot give it: said before anybody waits for it.

Knows amounts by name ("CPU", "GPU", custom ones). Must not know Ray's own words for them, nor what is free at the moment.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from outrider.coordinator.replica_actor import ReplicaSpec

CPU, GPU = "CPU", "GPU"
PARTS_OF_ONE = 10_000  # Ray counts in these; sums of parts that are no binary fraction may be a little more than they should
Amounts = Mapping[str, float]


def demand_of(spec: ReplicaSpec) -> dict[str, float]:
    """What is set aside for it, by name; nothing that it does not ask for."""
    asked = {CPU: spec.num_cpus, GPU: spec.num_gpus, **spec.resources}
    return {name: amount for name, amount in asked.items() if amount}


def told(amounts: Amounts) -> str:
    """For people: `2 GPU, 1 fast`."""
    return ", ".join(f"{amount:g} {name}" for name, amount in amounts.items()) or "nothing"


def problem_with(specs: Sequence[ReplicaSpec], nodes: Mapping[str, Amounts]) -> str:
    """A sentence when these replicas can never all run on these nodes, by Ray's id of each and with all it has; empty when they can.

    Those that must be on one node are added up; others are looked at one by one.
    """
    bound: dict[str, dict[str, float]] = {}
    for spec in specs:
        demand = demand_of(spec)
        if spec.node:
            sums = bound.setdefault(spec.node, {})
            sums.update({name: sums.get(name, 0.0) + amount for name, amount in demand.items()})
        elif not any(_fits(demand, node) for node in nodes.values()):
            has = "; ".join(told(_of(demand, node)) for node in nodes.values())
            return f"{spec.command.name} asks for {told(demand)} on one node, and none has so much: they have {has or 'nothing'}"
    for node, sums in bound.items():
        if not _fits(sums, nodes.get(node, {})):
            names = ", ".join(spec.command.name for spec in specs if spec.node == node and demand_of(spec))
            return f"asked for on one node: {told(sums)} ({names}); it has {told(_of(sums, nodes.get(node, {})))} in all"
        num_cards = sum(_own_cards(spec.num_gpus) for spec in specs if spec.node == node)
        if num_cards > (num_there := nodes.get(node, {}).get(GPU, 0.0)):
            return (
                f"asked for on one node: {told(sums)}, of which no two parts of more than a half share a GPU; it has {num_there:g} in all"
            )
    return ""


def _own_cards(num_gpus: float) -> int:
    """GPUs that such a demand has to itself, or of which it leaves less than a half: a part lies within one of them."""
    return int(num_gpus) if num_gpus >= 1 else int(num_gpus > 0.5)


def _fits(demand: Amounts, node: Amounts) -> bool:
    return all(round(amount * PARTS_OF_ONE) <= round(node.get(name, 0.0) * PARTS_OF_ONE) for name, amount in demand.items())


def _of(demand: Amounts, node: Amounts) -> dict[str, float]:
    return {name: node.get(name, 0.0) for name in demand}
