"""The value of a removal: the machine's price less the work that is lost by restarting its pods."""

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import BY_SIZE, Policy
from gpuscaler.planning.scale_down.blockers import Blocker
from gpuscaler.planning.scale_down.candidates import Candidate
from gpuscaler.planning.scale_down.contract import Situation
from gpuscaler.planning.scale_down.idle_timeout import format_duration
from gpuscaler.planning.scale_down.pod_classes import RunningClass, first_key

#: The one-off cost of a disruption must be earned back within this many seconds.
HORIZON = 3600.0
#: Savings below this many dollars per hour are rounding errors.
NOTHING = 1e-6


def dominant_share(spec: PodSpec, candidate: Candidate) -> float:
    """The largest share of the node's allocatable that one pod requests: its share of the machine's price."""
    allocatable = candidate.node.allocatable
    return max((amount / allocatable[name] for name, amount in spec.requests.items() if allocatable.get(name)), default=0.0)


def loss_of(running_class: RunningClass, candidate: Candidate) -> float:
    """Dollars of work that restarting one pod of ``running_class`` on ``candidate`` loses. A gang loses the work of all its members."""
    seconds = running_class.options.restart_cost
    if seconds is None:
        return 0.0
    members = max(1, running_class.options.gang_size) if running_class.options.gang else 1
    return seconds / 3600 * candidate.price * min(1.0, dominant_share(running_class.spec, candidate)) * members


def restart_loss(candidate: Candidate) -> float:
    """Dollars lost by moving all pods of ``candidate``: lost work, and the machine's cost while the pods save their work."""
    costly = sorted(
        (running_class for running_class in candidate.load if running_class.options.restart_cost is not None),
        key=lambda running_class: running_class.order,
    )
    return sum(loss_of(running_class, candidate) * len(candidate.load[running_class]) for running_class in costly) + waiting_loss(candidate)


def waiting_loss(candidate: Candidate) -> float:
    """Dollars that the machine of ``candidate`` costs while the pod with the longest grace period saves its work."""
    return candidate.price * max((running_class.options.grace or 0.0 for running_class in candidate.load), default=0.0) / 3600


def net_saving(saving: float, loss: float) -> float:
    """Dollars per hour left of ``saving`` when the one-off ``loss`` is spread over the horizon."""
    return saving - loss * 3600 / HORIZON


def pays(saving: float, loss: float, policy: Policy) -> bool:
    """Whether a removal that saves ``saving`` dollars per hour and loses ``loss`` dollars once is worth it."""
    return net_saving(saving, loss) > max(NOTHING, policy.min_saving - NOTHING)


def value_blocker(situation: Situation, candidate: Candidate) -> Blocker | None:
    """The blocker of a candidate that is not worth removing even if its pods found free room elsewhere."""
    if candidate.member.offering is None:
        return Blocker(
            "unknown-offering", f"no offering of pool {candidate.member.pool.name} has its instance type, so its price is unknown"
        )
    if candidate.member.offering.price_from == BY_SIZE:
        message = f"the price of {candidate.member.offering.instance_type} is guessed from its size"
        return Blocker("price-unknown", f"{message}, and no pods are moved to save an unknown amount; add it to the prices")
    wanted = candidate.member.pool.idle_after
    age = situation.now - candidate.node.created if candidate.node.created else 0.0
    if age < wanted:
        age_text = f"{format_duration(age)} old" if candidate.node.created else "of unknown age"
        return Blocker(
            "young", f"the machine is {age_text}; pool {candidate.member.pool.name} leaves new machines alone for {format_duration(wanted)}"
        )
    loss = restart_loss(candidate)
    if pays(candidate.price, loss, situation.policy):
        return None
    if loss > 0 and pays(candidate.price, 0.0, situation.policy):
        costly = [pod for running_class, pods in candidate.load.items() if running_class.options.restart_cost is not None for pod in pods]
        if not costly:
            slow = [pod for running_class, pods in candidate.load.items() if running_class.options.grace for pod in pods]
            lost = f"${loss:.2f} for the machine, and an hour without it saves ${candidate.price:.2f}"
            return Blocker("job", f"waiting while pod {first_key(slow)} and others like it save their work (grace) costs {lost}")
        lost = f"${loss:.2f} of work, and an hour without the machine saves ${candidate.price:.2f}"
        return Blocker("job", f"restarting pod {first_key(costly)} and others like it loses {lost}")
    return Blocker(
        "no-saving", f"the machine costs ${candidate.price:.4f} per hour; a removal must save ${situation.policy.min_saving:.4f}"
    )
