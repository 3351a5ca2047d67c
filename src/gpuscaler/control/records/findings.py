"""What somebody should look at: removals that are stopped, machines with fewer devices than they were sold with."""

from collections.abc import Iterator, Mapping

from gpuscaler.model.accelerators import ACCELERATORS
from gpuscaler.model.cluster import Cluster
from gpuscaler.planning.membership import Member
from gpuscaler.planning.plans import Plan


def findings(plan: Plan, cluster: Cluster, found: Mapping[str, Member]) -> Iterator[str]:
    """A sentence for each; ``found`` tells the pools of nodes."""
    halted = next((one.detail for one in plan.blocked_nodes if one.blocker == "unhealthy"), None)
    if halted is not None:
        yield halted
    for name, member in found.items():
        offering, shown = member.offering, cluster.nodes[name].allocatable
        if offering is None:
            continue
        for device in ACCELERATORS:
            most = offering.allocatable.get(device, 0)
            if 0 < shown.get(device, 0) < most:
                yield (
                    f"node {name} shows {shown[device]} of {most} {device} that a {offering.instance_type} has; "
                    f"it is planned with those it shows; look at its driver's log for a device that has failed, and replace it"
                )
