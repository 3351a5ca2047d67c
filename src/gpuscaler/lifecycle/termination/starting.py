"""The start of removals: of nodes that a plan removes, and of machines that never opened."""

from collections import Counter
from collections.abc import Mapping, Set

from msgspec import Struct

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.capacity.pool_membership import members
from gpuscaler.planning.plans import PlannedRemoval
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import ENDING, OrderedMachine, Removal
from gpuscaler.planning.state.ledger.ledger import Ledger


class Overdue(Struct, frozen=True, gc=False):
    """A machine that did not register, or was not ready, in time and has to be ended."""

    machine: OrderedMachine
    reason: str


def begin_removals(
    current: Ledger,
    cluster: Cluster,
    policy: Policy,
    removals: tuple[PlannedRemoval, ...],
    *,
    names: Mapping[str, str],
    unlisted: Set[str],
    now: float,
) -> list[ledger.Event]:
    """Return the removals of a plan as events for the ledger. ``names`` are the ledger's ids of the plan's machines.

    ``unlisted`` nodes are not ours, and are not removed.
    """
    under_way = {removal.node for removal in current.leaving}
    coming = {machine.node for machine in current.coming if machine.node}
    nodes = {removal.node: cluster.nodes[removal.node] for removal in removals if removal.node in cluster.nodes}
    memberships = members(nodes, policy, unlisted)
    alike = Counter(node.provider_id for node in cluster.nodes.values()) if nodes else Counter()
    steps: list[ledger.Event] = []
    for removal in removals:
        node = nodes.get(removal.node)
        if node is None or node.name in under_way or node.name in coming or not node.provider_id or node.name not in memberships:
            continue
        if alike[node.provider_id] > 1:
            # Two nodes with one provider ID: ending the machine would end the pods of both (I4).
            continue
        offering = memberships[node.name].offering
        steps.append(
            ledger.RemovalUpdated(
                Removal(
                    node=node.name,
                    instance=node.provider_id,
                    offering=offering.key if offering is not None else OfferingKey(memberships[node.name].pool.name, "", "", ""),
                    reason=removal.reason,
                    at=now,
                    since=now,
                    pods=tuple(move.pod for move in removal.moves),
                    to=tuple(move.to if move.to in cluster.nodes else "" for move in removal.moves),
                    needs=tuple(names[needed] for needed in removal.needs if needed in names),
                )
            )
        )
    return steps


def remove_overdue(overdue: Overdue, now: float) -> ledger.RemovalUpdated:
    """Return the removal of a machine that never opened: no pods run there, so it is ended at once."""
    machine = overdue.machine
    return ledger.RemovalUpdated(
        Removal(
            node=machine.node or machine.instance,
            instance=machine.instance,
            offering=machine.key,
            reason=overdue.reason,
            at=now,
            since=now,
            step=ENDING,
        )
    )
