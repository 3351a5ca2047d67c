"""A tiny planner for tests: each pending pod gets the cheapest machine that holds it alone, and idle machines are removed."""

from gpuscaler.model.cluster import Cluster
from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering, Policy
from gpuscaler.planning.plans import Plan, PlannedMachine, PlannedRemoval, Reason, Unplaced
from gpuscaler.planning.state import State
from gpuscaler.simulation.policies.ours import Decide


def first_fit(policy: Policy) -> Decide:
    idle_after = {pool.name: pool.idle_after for pool in policy.pools}
    offerings = sorted(
        (offering for pool in policy.pools for offering in pool.offerings), key=lambda offering: (offering.price, offering.key)
    )

    def decide(cluster: Cluster, state: State, _: float) -> Plan:
        promised = {key for upcoming in state.upcoming for key in upcoming.pods}
        machines: list[PlannedMachine] = []
        unplaced: list[Unplaced] = []
        for bucket in cluster.unbound.values():
            for key in bucket.keys:
                if key in promised or bucket.pods[key].nominated_node:
                    continue
                home = next((offering for offering in offerings if _holds(offering, bucket.pods[key].spec)), None)
                if home is None:
                    unplaced.append(Unplaced(key, (Reason("any", "resource", "too large"),)))
                    continue
                name = f"new-{len(machines) + 1}"
                machines.append(PlannedMachine(name, home.pool, home.instance_type, home.market, home.zone, home.price, pods=(key,)))
        removals = tuple(
            PlannedRemoval(name, "idle")
            for name, seconds in state.idle_seconds.items()
            if name not in cluster.on_node and seconds >= idle_after[cluster.nodes[name].labels["gpuscaler.io/pool"]]
        )
        return Plan(machines=tuple(machines), removals=removals, unplaced=tuple(unplaced))

    return decide


def _holds(offering: Offering, spec: PodSpec) -> bool:
    return offering.admits(spec) and all(offering.allocatable.get(name, 0) >= amount for name, amount in spec.requests.items())
