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


def record_sent(admissions: Admissions, acts: Iterable[Act], ledger: Ledger, now: float) -> Admissions:
    """Remember the bindings among ``acts`` to machines that are promised in ``ledger``."""
    pools = {promise.node: promise.offering.pool for promise in ledger.promises}
    new = {act.uid: SentBinding(act.pod, act.node, pools[act.node], now) for act in acts if isinstance(act, Bind) and act.node in pools}
    return Admissions({**admissions.bound, **new}, admissions.row) if new else admissions


def observe(admissions: Admissions, cluster: Cluster, now: float) -> AdmissionFindings:
    """Find what became of the pods that were bound."""
    if not admissions.bound:
        return AdmissionFindings(admissions)
    bound, row = dict(admissions.bound), dict(admissions.row)
    turned_away: list[TurnedAway] = []
    refused: list[BindingRefused] = []
    for uid, sent_binding in admissions.bound.items():
        pod = cluster.pods.get(sent_binding.pod)
        if pod is None or pod.uid != uid or now >= sent_binding.at + WATCHED_SECONDS:
            del bound[uid]
        elif pod.phase == "Failed" and pod.node_name == sent_binding.node and pod.reason.startswith(REASONS):
            del bound[uid]
            turned_away.append(TurnedAway(sent_binding.pod, sent_binding.node, sent_binding.pool, pod.reason, uid))
            row[sent_binding.pool] = row.get(sent_binding.pool, 0) + 1
            if row[sent_binding.pool] >= MOST:
                del row[sent_binding.pool]
                why = (
                    f"the kubelet of node {sent_binding.node} turned away pod {sent_binding.pod} ({pod.reason}), the "
                    "second rejection in a row"
                )
                refused.append(BindingRefused(sent_binding.pod, sent_binding.node, why, sent_binding.pool))
        elif pod.phase != "Pending":
            del bound[uid]
            if pod.node_name == sent_binding.node:
                row.pop(sent_binding.pool, None)
    return AdmissionFindings(Admissions(bound, row), tuple(turned_away), tuple(refused))
