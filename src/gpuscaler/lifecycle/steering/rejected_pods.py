"""Pods that a kubelet turns away after we bound them to its node: they fail for good, and their owner makes new ones.

A kubelet admits by what it sees itself: a device that is not healthy, CPUs of one socket, pods that no API server knows. Where that happens
twice in a row in a pool, its pods are nominated for a while, so that kube-scheduler is asked again.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpuscaler.lifecycle.actions import Act, Bind
from gpuscaler.lifecycle.steering.binding import BindingRefused
from gpuscaler.model.cluster import Cluster
from gpuscaler.planning.state.ledger.ledger import Ledger

#: What kubelets say of pods that they do not admit (``pkg/kubelet/lifecycle/predicate.go``, the topology and device managers), or how
#: that begins: ``OutOfcpu``, ``OutOfnvidia.com/gpu``.
REASONS = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError")
#: After so long a pod that was bound has been admitted, or its node has other troubles.
WATCHED_SECONDS = 300.0
#: So many in a row keep a pool from binding.
MOST = 2


class SentBinding(Struct, frozen=True, gc=False):
    """A binding that was sent at this moment, for a machine of ``pool``."""

    pod: str
    node: str
    pool: str
    at: float


class TurnedAway(Struct, frozen=True, gc=False):
    """A pod that we bound and the kubelet of ``node``, a machine of ``pool``, did not admit; ``reason`` is one word of the kubelet's."""

    pod: str
    node: str
    pool: str
    reason: str
    uid: str


class Admissions(Struct, frozen=True, gc=False):
    """``bound`` are pods of which no kubelet has said anything yet, by uid; ``row`` how many of a pool were turned away in a row."""

    bound: Mapping[str, SentBinding] = {}
    row: Mapping[str, int] = {}


class AdmissionFindings(Struct, frozen=True, gc=False):
    """What kubelets have said: ``refused`` are bindings to pools that are left alone for a while."""

    admissions: Admissions
    turned_away: tuple[TurnedAway, ...] = ()
    refused: tuple[BindingRefused, ...] = ()


def sent(known: Admissions, acts: Iterable[Act], book: Ledger, now: float) -> Admissions:
    """Remember the bindings among ``acts`` to machines that are promised in ``book``."""
    pools = {one.node: one.offering.pool for one in book.promises}
    new = {act.uid: SentBinding(act.pod, act.node, pools[act.node], now) for act in acts if isinstance(act, Bind) and act.node in pools}
    return Admissions({**known.bound, **new}, known.row) if new else known


def observe(known: Admissions, cluster: Cluster, now: float) -> AdmissionFindings:
    """What has become of the pods that were bound."""
    if not known.bound:
        return AdmissionFindings(known)
    bound, row = dict(known.bound), dict(known.row)
    turned_away: list[TurnedAway] = []
    refused: list[BindingRefused] = []
    for uid, one in known.bound.items():
        pod = cluster.pods.get(one.pod)
        if pod is None or pod.uid != uid or now >= one.at + WATCHED_SECONDS:
            del bound[uid]
        elif pod.phase == "Failed" and pod.node_name == one.node and pod.reason.startswith(REASONS):
            del bound[uid]
            turned_away.append(TurnedAway(one.pod, one.node, one.pool, pod.reason, uid))
            row[one.pool] = row.get(one.pool, 0) + 1
            if row[one.pool] >= MOST:
                del row[one.pool]
                why = f"the kubelet of node {one.node} turned away pod {one.pod} ({pod.reason}), and one was turned away before it"
                refused.append(BindingRefused(one.pod, one.node, why, one.pool))
        elif pod.phase != "Pending":
            del bound[uid]
            if pod.node_name == one.node:
                row.pop(one.pool, None)
    return AdmissionFindings(Admissions(bound, row), tuple(turned_away), tuple(refused))
