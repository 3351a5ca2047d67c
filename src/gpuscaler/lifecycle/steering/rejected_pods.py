"""Pods that a kubelet rejects after they were bound to its node: such a pod fails for good, and its owner creates a new one.

A kubelet knows more than the API server: a device that is not healthy, the CPUs of each socket, static pods. After two rejections in a row
in a pool, the pods of the pool are nominated instead of bound for a while, so that kube-scheduler checks them again.
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
#: Seconds after which a bound pod is no longer watched: it was admitted, or its node has other problems.
WATCHED_SECONDS = 300.0
#: After this many rejections in a row no pods are bound in a pool for a while.
MAX_REJECTIONS = 2


class SentBinding(Struct, frozen=True, gc=False):
    """A binding to a machine of ``pool``, sent at ``at``."""

    pod: str
    node: str
    pool: str
    at: float


class TurnedAway(Struct, frozen=True, gc=False):
    """A pod that we bound and that the kubelet of ``node``, a machine of ``pool``, did not admit; ``reason`` is the kubelet's reason."""

    pod: str
    node: str
    pool: str
    reason: str
    uid: str


class Admissions(Struct, frozen=True, gc=False, rename={"rejections_in_row": "row"}):
    """``bound`` are bound pods that no kubelet has admitted or rejected yet, by uid; ``rejections_in_row`` counts rejections, by pool."""

    bound: Mapping[str, SentBinding] = {}
    rejections_in_row: Mapping[str, int] = {}


class AdmissionFindings(Struct, frozen=True, gc=False):
    """``turned_away`` are the rejected pods; ``refused`` names the pools where no pods are bound for a while."""

    admissions: Admissions
    turned_away: tuple[TurnedAway, ...] = ()
    refused: tuple[BindingRefused, ...] = ()


def record_sent(admissions: Admissions, acts: Iterable[Act], ledger: Ledger, now: float) -> Admissions:
    """Remember those bindings among ``acts`` whose nodes have promises in ``ledger``."""
    pools = {promise.node: promise.offering.pool for promise in ledger.promises}
    new = {act.uid: SentBinding(act.pod, act.node, pools[act.node], now) for act in acts if isinstance(act, Bind) and act.node in pools}
    return Admissions({**admissions.bound, **new}, admissions.rejections_in_row) if new else admissions


def observe(admissions: Admissions, cluster: Cluster, now: float) -> AdmissionFindings:
    """Find out which bound pods were admitted and which were rejected."""
    if not admissions.bound:
        return AdmissionFindings(admissions)
    bound, row = dict(admissions.bound), dict(admissions.rejections_in_row)
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
            if row[sent_binding.pool] >= MAX_REJECTIONS:
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
