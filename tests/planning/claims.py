"""I11: a pod is moved or placed only into room that no other pod has a claim on.

The check is simple on purpose and shares no code with the planner: for each resource it adds up the requests of all pods with a claim on
a machine, and compares the sum with the resources of the machine.
"""

from collections import Counter
from collections.abc import Iterator, Mapping

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy
from gpuscaler.planning.planner import Planner
from gpuscaler.planning.plans import Plan
from gpuscaler.planning.state import State, Upcoming

#: Room that plans of this process gave away twice since a test began. See :func:`check_every_plan`.
BROKEN: list[str] = []
PODS = "pods"


def overfull_machines(cluster: Cluster, state: State, policy: Policy, made: Plan) -> list[str]:
    """Messages about the machines on which ``made`` places pods although other pods have that room.

    The sum includes running and nominated pods, pods that were promised a machine of the ledger, and pods that this plan moves or places.
    Only resources that the new pods of a machine request are checked: a machine that was too full before is not a fault of the plan.
    """
    coming = {machine.id: machine for machine in state.upcoming}
    moved = {move.pod: move.to for removal in made.removals for move in removal.moves}
    placed = {placement.pod: placement.node for placement in made.placements}
    new = {pod: machine.id for machine in made.machines for pod in machine.pods if pod not in moved}
    arriving: dict[str, set[str]] = {}
    for pod, place in (*moved.items(), *placed.items(), *new.items()):
        arriving.setdefault(place, set()).add(pod)
    promised = dict(_promised(cluster, state, {*moved, *placed, *new}))
    broken = []
    for place, pods in arriving.items():
        offered = _offered(place, cluster, coming, policy, made)
        staying = (pod for pod in _running(place, cluster, coming) if pod.key not in moved)
        here = {pod.key: pod for pod in staying} | {key: cluster.pods[key] for key in pods}
        here |= {key: cluster.pods[key] for key, where in promised.items() if where == place}
        wanted = {name for key in pods for name, amount in cluster.pods[key].spec.requests.items() if amount > 0} | {PODS}
        taken = _sum(here)
        broken += [
            f"I11: {place} offers {offered.get(name, 0)} {name} and {taken[name]} are wanted there by {', '.join(sorted(here))}; "
            f"this plan puts {', '.join(sorted(pods))} there"
            for name in sorted(wanted & offered.keys())
            if taken[name] > offered[name]
        ]
    return broken


def _promised(cluster: Cluster, state: State, elsewhere: set[str]) -> Iterator[tuple[str, str]]:
    """Pending pods with their place by nomination or by the ledger, except those that this plan places."""
    for key, bucket in cluster.unbound.items():
        if key.nominated and not key.terminating and not bucket.sample.spec.gates:
            yield from ((pod, key.nominated) for pod in bucket.pods if pod not in elsewhere and pod not in state.broken_promises)


def _running(place: str, cluster: Cluster, coming: Mapping[str, Upcoming]) -> Iterator[Pod]:
    name = coming[place].node if place in coming else place
    yield from cluster.on_node.get(name, {}).values()


def _offered(place: str, cluster: Cluster, coming: Mapping[str, Upcoming], policy: Policy, made: Plan) -> Mapping[str, int]:
    """The resources of a node; for an ordered or bought machine, the minimum that it may turn out to have."""
    if place in cluster.nodes:
        return cluster.nodes[place].allocatable
    if place in coming:
        machine = coming[place]
        keys = {(machine.pool, m, t, z) for t, m, z in machine.choices or ((machine.instance_type, machine.market, machine.zone),)}
    else:
        new = next(machine for machine in made.machines if machine.id == place)
        choices = [(choice.market, choice.instance_type, choice.zone) for choice in new.choices] or [
            (new.market, new.instance_type, new.zone)
        ]
        keys = {(new.pool, *choice) for choice in choices}
    offers = [offering.allocatable for pool in policy.pools for offering in pool.offerings if offering.key in keys]
    return {name: min(offer.get(name, 0) for offer in offers) for name in {name for offer in offers for name in offer}}


def _sum(pods: Mapping[str, Pod]) -> Counter[str]:
    total = Counter({PODS: len(pods)})
    for pod in pods.values():
        total.update({name: amount for name, amount in pod.spec.requests.items() if name != PODS})
    return total


def check_every_plan() -> None:
    """Check every plan that this process makes from now on; errors are added to :data:`BROKEN`."""
    made_by = Planner.plan_and_proof
    if hasattr(made_by, "watched"):
        return

    def plan_and_proof(self: Planner, cluster: Cluster, state: State, now: float, **more: object) -> object:
        plan_and_proof_made = made_by(self, cluster, state, now, **more)  # type: ignore[arg-type]  # passed on unchanged
        BROKEN.extend(overfull_machines(cluster, state, self.policy, plan_and_proof_made[0]))
        return plan_and_proof_made

    plan_and_proof.watched = True  # type: ignore[attr-defined]  # marks that this is done
    Planner.plan_and_proof = plan_and_proof  # type: ignore[method-assign,assignment]  # patches every planner
