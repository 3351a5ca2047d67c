"""Pods that a kubelet turns away after they were bound to its node: they fail for good, and their owner creates new ones.

A kubelet admits pods by its own view: a device that is not healthy, CPUs of one socket, pods that no API server knows. If a pool has two
rejections in a row, its pods are nominated instead of bound for a while, so that kube-scheduler checks them again.
"""

from collections.abc import Iterable, Mapping

from msgspec import Struct

from gpuscaler.lifecycle.actions import Act, Bind
from gpuscaler.lifecycle.steering.binding import BindingRefused
from gpuscaler.model.cluster import Cluster
from gpuscaler.planning.state.ledger.ledger import Ledger

#: Reasons, or their beginnings, of kubelets for pods that they do not admit (``pkg/kubelet/lifecycle/predicate.go``, the topology and
#: device managers): ``OutOfcpu``, ``OutOfnvidia.com/gpu``.
REASONS = ("OutOf", "UnexpectedAdmissionError", "NodeAffinity", "TopologyAffinityError")
#: After this time a bound pod has been admitted, or its node has other troubles.
WATCHED_SECONDS = 300.0
#: How many rejections in a row stop a pool from binding.
MOST = 2


class SentBinding(Struct, frozen=True, gc=False):
    """A binding that was sent at the moment ``at``, for a machine of ``pool``."""

    pod: str
    node: str
    pool: str
    at: float


class TurnedAway(Struct, frozen=True, gc=False):
    """A pod that we bound and that the kubelet of ``node``, a machine of ``pool``, did not admit; ``reason`` is the kubelet's word."""

    pod: str
    node: str
    pool: str
    reason: str
    uid: str


class Admissions(Struct, frozen=True, gc=False):
    """``bound`` are pods that no kubelet has answered for yet, by uid; ``row`` is how many pods of a pool were turned away in a row."""

    bound: Mapping[str, SentBinding] = {}
    row: Mapping[str, int] = {}


class AdmissionFindings(Struct, frozen=True, gc=False):
    """The kubelets' answers: ``refused`` are bindings to pools where nothing is bound for a while."""

    admissions: Admissions
    turned_away: tuple[TurnedAway, ...] = ()
    refused: tuple[BindingRefused, ...] = ()


def sent(known: Admissions, acts: Iterable[Act], book: Ledger, now: float) -> Admissions:
    """Remember the bindings among ``acts`` to machines that are promised in ``book``."""
    pools = {one.node: one.offering.pool for one in book.promises}
    new = {act.uid: SentBinding(act.pod, act.node, pools[act.node], now) for act in acts if isinstance(act, Bind) and act.node in pools}
    return Admissions({**known.bound, **new}, known.row) if new else known


def observe(known: Admissions, cluster: Cluster, now: float) -> AdmissionFindings:
    """Find what became of the pods that were bound."""
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
                why = f"the kubelet of node {one.node} turned away pod {one.pod} ({pod.reason}), the second rejection in a row"
                refused.append(BindingRefused(one.pod, one.node, why, one.pool))
        elif pod.phase != "Pending":
            del bound[uid]
            if pod.node_name == one.node:
                row.pop(one.pool, None)
    return AdmissionFindings(Admissions(bound, row), tuple(turned_away), tuple(refused))
