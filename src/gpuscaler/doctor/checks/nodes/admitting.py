"""Why a DaemonSet does not run on a node, and what lets it."""

from gpuscaler.doctor.checks.nodes.gpu_nodes import lasting_taints, sign_of_gpus
from gpuscaler.doctor.checks.tolerating import add_tolerations, tolerations_with
from gpuscaler.doctor.checks.trusting import verify
from gpuscaler.doctor.commands import ObjectName, kubectl_label, kubectl_patch
from gpuscaler.doctor.findings import Fix
from gpuscaler.model.nodes import Node
from gpuscaler.model.taints import Taint
from gpuscaler.model.workloads import Workload
from gpuscaler.planning.feasibility.nodes import admits, explain_selector

#: Labels that NFD and GPU operator set, and others must not.
_OPERATOR_LABELS = ("nvidia.com/gpu.deploy.", "feature.node.kubernetes.io/")
#: Labels that the kubelet and the cloud set, and others must not.
_RESERVED_LABELS = (
    "kubernetes.io/",
    "node.kubernetes.io/",
    "beta.kubernetes.io/",
    "topology.kubernetes.io/",
    "failure-domain.beta.kubernetes.io/",
)
_BETA = "beta.kubernetes.io/"
_TERMS = "/spec/template/spec/affinity/nodeAffinity/requiredDuringSchedulingIgnoredDuringExecution/nodeSelectorTerms"


def discovers(daemon: Workload) -> bool:
    """Whether it is NFD's worker, which labels nodes with GPUs."""
    return any(word in daemon.name for word in ("node-feature-discovery-worker", "nfd-worker"))


def selects(daemon: Workload, node: Node) -> bool:
    """Whether selector and affinity admit ``node``, so that only its taints keep the DaemonSet away."""
    return daemon.template is not None and admits(daemon.template, node)


def waits_for_labels(daemon: Workload, node: Node) -> bool:
    """Whether the DaemonSet waits for labels that NFD or GPU operator put on nodes with GPUs."""
    return any(key.startswith(_OPERATOR_LABELS) for key in _missing_keys(daemon, node))


def _missing_keys(daemon: Workload, node: Node) -> list[str]:
    spec = daemon.template
    if spec is None:
        return []
    terms = spec.node_affinity.terms if spec.node_affinity is not None else ()
    keys = [key for key, value in spec.node_selector if node.labels.get(key) != value]
    return keys or [requirement.key for term in terms for requirement in term.expressions if not requirement.matches(node.labels)]


def _untolerated(daemon: Workload, node: Node) -> tuple[Taint, ...]:
    tolerations = daemon.template.tolerations if daemon.template is not None else ()
    return tuple(taint for taint in lasting_taints(node) if not any(toleration.tolerates(taint) for toleration in tolerations))


def cause_of(daemon: Workload, node: Node) -> str:
    """What keeps the DaemonSet off ``node``, the same text for nodes alike."""
    if not selects(daemon, node) and daemon.template is not None:
        return explain_selector(daemon.template, node).replace(node.name, "another")
    return f"no toleration of {' and '.join(map(str, _untolerated(daemon, node)))}"


def field_of(daemon: Workload, node: Node) -> str:
    """The field of the DaemonSet that keeps it off ``node``."""
    if selects(daemon, node):
        return "spec.template.spec.tolerations"
    spec = daemon.template
    selector = spec is not None and any(node.labels.get(key) != value for key, value in spec.node_selector)
    return "spec.template.spec.nodeSelector" if selector else "spec.template.spec.affinity.nodeAffinity"


def fix_for(daemon: Workload, nodes: list[Node], *, safe: bool, exist: bool = True) -> Fix:
    """Tolerations of the taints of ``nodes``, values for its affinity, or labels for the nodes, if they ``exist`` already.

    What is outside of the DaemonSet's namespace is changed only if that is ``safe``: labels of nodes decide which pods run there.
    """
    target = ObjectName("DaemonSet", daemon.namespace, daemon.name)
    taints = list(dict.fromkeys(taint for node in nodes for taint in _untolerated(daemon, node)))
    more: tuple[str, ...] = ()
    advice: tuple[str, ...] = ()
    if taints and daemon.owner.kind == "ClusterPolicy" and daemon.template is not None:
        policy = ObjectName("ClusterPolicy", "", daemon.owner.name)
        tolerations = tolerations_with(daemon.template, taints)
        if safe:
            more = (kubectl_patch(policy, {"spec": {"daemonsets": {"tolerations": tolerations}}}),)
        else:
            tolerated = ", ".join(map(str, taints))
            advice = (
                f"{verify('the plugin', daemon.namespace)}; then tolerate {tolerated} in spec.daemonsets.tolerations of {policy.title}",
            )
    elif taints and daemon.template is not None:
        more = (add_tolerations(target, daemon.template, taints),)
    if selects(daemon, nodes[0]):
        return Fix(more, "; ".join(advice))
    widened = _widened(daemon, target, nodes)
    if widened:
        return Fix((widened, *more), "; ".join(advice))
    label = _label_wanted(daemon, nodes[0])
    if label is None:
        return Fix(more, "; ".join((*advice, f"let its selector or affinity admit nodes with {sign_of_gpus(nodes[0])}")))
    key, value = label
    if exist and not safe:
        unsafe = f"{verify('the plugin', daemon.namespace)}; then set the label {key}={value} on these nodes, and in their group"
        return Fix(more, "; ".join((*advice, unsafe)))
    labels = tuple(kubectl_label(ObjectName("Node", "", node.name), key, value) for node in nodes) if exist else ()
    return Fix((*labels, *more), "; ".join((*advice, f"new nodes need the label {key}={value}, too: set it in their group")))


def _widened(daemon: Workload, target: ObjectName, nodes: list[Node]) -> str:
    """The command that adds values to a list of its affinity, such as instance types; empty if that does not help."""
    spec = daemon.template
    if spec is None or spec.node_affinity is None or any(nodes[0].labels.get(key) != value for key, value in spec.node_selector):
        return ""
    for place, term in enumerate(spec.node_affinity.terms):
        missed = [number for number, requirement in enumerate(term.expressions) if not requirement.matches(nodes[0].labels)]
        requirement = term.expressions[missed[0]] if len(missed) == 1 else None
        if requirement is None or requirement.operator != "In" or not requirement.key.startswith(_RESERVED_LABELS):
            continue
        key = requirement.key
        path = f"{_TERMS}/{place}/matchExpressions/{missed[0]}"
        operations = []
        if key not in nodes[0].labels and key.startswith(_BETA):
            key = f"node.kubernetes.io/{key.removeprefix(_BETA)}"
            operations.append({"op": "replace", "path": f"{path}/key", "value": key})
        values = dict.fromkeys(node.labels.get(key, "") for node in nodes)
        if all(values):
            operations += [{"op": "add", "path": f"{path}/values/-", "value": value} for value in values]
            return kubectl_patch(target, operations, strategy="json")
    return ""


def _label_wanted(daemon: Workload, node: Node) -> tuple[str, str] | None:
    """The one label with which ``node`` would be admitted, if a user may set it."""
    spec = daemon.template
    if spec is None:
        return None
    missing = [(key, value) for key, value in spec.node_selector if node.labels.get(key) != value]
    if not missing and spec.node_affinity is not None:
        for term in spec.node_affinity.terms:
            missed = [requirement for requirement in term.expressions if not requirement.matches(node.labels)]
            if len(missed) == 1 and missed[0].operator == "In" and _may_be_set(missed[0].key):
                return missed[0].key, missed[0].values[0]
    return missing[0] if len(missing) == 1 and _may_be_set(missing[0][0]) else None


def _may_be_set(key: str) -> bool:
    return not key.startswith((*_OPERATOR_LABELS, *_RESERVED_LABELS))
