"""Return to spot: replaces on-demand machines with spot machines one at a time, and not for a while after a spot machine was reclaimed.

The spot machine that is bought acts as a probe: no pod is evicted before it is open, and if the cloud refuses it all pods stay. After one
has arrived, an offering that was refused or reclaimed before must first prove stable before more machines move to it
(``Templates.without_unsettled``).
"""

from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property

from gpuscaler.model.offerings import SPOT
from gpuscaler.model.pools import Offering
from gpuscaler.planning.capacity.idle import is_idle
from gpuscaler.planning.plans import PlannedMachine
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.moves.destinations import node_market
from gpuscaler.planning.scale_down.pod_classes import RunningClass
from gpuscaler.planning.state.breaker_messages import describe_trouble, format_time


class SpotReturns:
    """Decides which replacements in ``situation`` return to spot, and which of those may do so now."""

    def __init__(self, situation: Situation) -> None:
        self._situation = situation

    @cached_property
    def _under_way(self) -> frozenset[str]:
        """Pools from which a non-spot machine with pods that go elsewhere is being removed."""
        cluster, members, now = self._situation.cluster, self._situation.members, self._situation.now
        leaving = (
            name for name in self._situation.state.disrupting if name in members and node_market(cluster.nodes[name], members[name]) != SPOT
        )
        return frozenset(members[name].pool.name for name in leaving if not is_idle(cluster.on_node.get(name, {}).values(), now))

    def blockers(
        self, candidates: Iterable[Candidate], machines: Sequence[PlannedMachine], needs: Mapping[Candidate, Sequence[str]]
    ) -> dict[Candidate, Blocker]:
        """The blockers of those of ``candidates``, ordered best first, that may not return now: all but the first of each pool.

        A candidate that needs only the new machines of the first one goes together with it.
        """
        spot = {machine.id: machine.pool for machine in machines if may_be_spot(machine)}
        blockers: dict[Candidate, Blocker] = {}
        first: dict[str, frozenset[str]] = {}
        for candidate in candidates:
            spot_machines = frozenset(needs[candidate]) & spot.keys()
            if is_spot(candidate) or not spot_machines:
                continue
            source, targets = candidate.member.pool.name, {spot[machine] for machine in spot_machines}
            why = self._recently_reclaimed(targets)
            alone = source not in self._under_way and all(spot_machines <= first.get(pool, spot_machines) for pool in (source, *targets))
            if why is None and not alone:
                why = Blocker("going-back", f"it could run cheaper on spot; machines of pool {source} return to spot one at a time")
            if why is None:
                for pool in (source, *targets):
                    first.setdefault(pool, spot_machines)
            else:
                blockers[candidate] = why
        return blockers

    def _recently_reclaimed(self, pools: Iterable[str]) -> Blocker | None:
        state, now = self._situation.state, self._situation.now
        until = {
            pool: state.spot_return_blocked_until[pool] for pool in sorted(pools) if now < state.spot_return_blocked_until.get(pool, 0.0)
        }
        if not until:
            return None
        pool = max(until, key=until.__getitem__)
        taken = f"a spot machine of pool {pool} was reclaimed a short while ago"
        return Blocker(
            "going-back", f"it could run cheaper on spot; {taken}, so no machine returns to it before {format_time(until[pool], now)}"
        )

    def notes(self, candidates: Iterable[Candidate]) -> dict[str, str]:
        """By node, a note for machines that stay although spot of their instance type is cheaper, since that spot is not trusted yet."""
        state, now = self._situation.state, self._situation.now
        distrusted = state.blocked_offerings | state.no_moves_to
        if not distrusted:
            return {}
        offered = (
            offering for offering in self._situation.policy.offerings.values() if offering.market == SPOT and offering.key in distrusted
        )
        cheapest: dict[str, Offering] = {}
        for offering in sorted(offered, key=lambda offering: (offering.price, offering.key)):
            cheapest.setdefault(offering.instance_type, offering)
        notes = {}
        for candidate in candidates:
            own = candidate.member.offering
            best = cheapest.get(own.instance_type) if own is not None else None
            if best is not None and best.price < candidate.price and not is_spot(candidate) and all(map(admits_spot, candidate.load)):
                trouble = describe_trouble(state.breakers, best.key, now) or "it was refused or reclaimed a short while ago"
                notes[candidate.name] = f"{best.instance_type} on spot in {best.zone} would cost ${best.price:.4f} per hour ({trouble})"
        return notes


def is_spot(candidate: Candidate) -> bool:
    return node_market(candidate.node, candidate.member) == SPOT


def admits_spot(running_class: RunningClass) -> bool:
    """Whether the annotations of a class let its pods be moved onto spot."""
    wanted = running_class.options.market
    return running_class.options.deadline is None and (not wanted or SPOT in wanted or "any" in wanted)


def may_be_spot(machine: PlannedMachine) -> bool:
    return machine.market == SPOT or any(choice.market == SPOT for choice in machine.choices)
