"""Machines without a node of which the cloud itself reports a fault: an extension that failed, or a group that finds the machine unhealthy.

Azure calls a machine failed once all of its extensions have ended and one of them has failed. If that is the one that starts the kubelet,
the machine never becomes a node; if it is another one, the kubelet may just be starting. Azure also tries again when the scale set is
written; meanwhile it reports no fault. So such a machine gets a little time to become a node, and then is given up without waiting for the
end of the usual time-out. A machine that is a node works, whatever else failed there, and is left alone.
"""

from collections.abc import Iterator, Mapping

from gpuscaler.lifecycle.observed.machine_index import MachineIndex
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.entries import SKEW_SECONDS
from gpuscaler.planning.state.ledger.ledger import Ledger, OrderedMachine

#: How long a machine may take to become a node after its cloud has reported a fault, in seconds.
FAULT_SECONDS = 120.0


def find_faults(current: Ledger, index: MachineIndex) -> Mapping[str, str]:
    """Return what the cloud reports about machines of ``current`` without a node, by the ledger's names."""
    alive = index.listed.alive
    return {
        machine.id: alive[machine.instance].fault
        for machine in current.coming
        if not machine.node and machine.instance in alive and alive[machine.instance].fault
    }


def note_faults(current: Ledger, faults: Mapping[str, str], at: float) -> Iterator[ledger.Event]:
    """Yield the steps that note in ``current`` since when the cloud has reported ``faults``, according to its list of the time ``at``."""
    for machine in current.coming:
        since = (machine.faulted or at) if machine.id in faults else 0.0
        if since != machine.faulted:
            yield ledger.Faulted(machine.id, since)


def is_hopeless(machine: OrderedMachine, observed_at: float, index: MachineIndex) -> bool:
    """Whether a machine with a fault has had its time to become a node, as the cluster and the cloud's list were at ``observed_at``.

    A node without a provider ID that is not much older than the machine may be its node.
    """
    is_due = bool(machine.faulted) and observed_at >= machine.faulted + FAULT_SECONDS
    return is_due and all(node.created < machine.asked - SKEW_SECONDS for node in index.unnamed.values())
