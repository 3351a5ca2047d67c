"""Who may reach the pods of a team."""

from collections.abc import Iterable, Iterator
from urllib.parse import urlsplit

from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.existing import exists
from gpuscaler.generating.kubernetes.workloads.placing import places
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, objects_file

#: The label that Kubernetes sets on each namespace.
NAMESPACE_LABEL = "kubernetes.io/metadata.name"
#: The namespace of Prometheus unless its URL names another one.
_MONITORING = "monitoring"


def network_policy_files(description: Description) -> Iterable[GeneratedFile]:
    namespaces = dict.fromkeys([*description.team_namespaces.values(), *_of_examples(description)])
    if namespaces:
        yield objects_file(
            "kubernetes/network-policies.yaml",
            "who may reach the pods of the teams and of the examples; needs a network that enforces policies",
            [policy for namespace in namespaces for policy in _policies(description, namespace)],
            edit=_edit(description),
        )


def prometheus_namespace(description: Description) -> str:
    """Return the namespace of Prometheus, if its URL is that of a Service."""
    labels = (urlsplit(description.prometheus).hostname or "").split(".")
    return labels[1] if len(labels) > 2 and labels[2] == "svc" else _MONITORING


def _edit(description: Description) -> str:
    ingress = "add the namespaces of ingress controllers and others that must reach pods of the teams to `from`"
    if exists(description) and description.teams:
        return f"{ingress}: where a namespace exists, its pods are cut off from all other namespaces as soon as the policy is there"
    return ingress


def _of_examples(description: Description) -> list[str]:
    return [place.namespace for place in places(description).values()]


def _policies(description: Description, namespace: str) -> Iterator[Tree]:
    yield because(
        f"Pods of {namespace} are reached by pods of the same namespace only. Model servers ask for no password, and without a policy "
        "any pod of the cluster reaches them.",
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "NetworkPolicy",
            "metadata": {"name": "same-namespace", "namespace": namespace},
            "spec": {
                "podSelector": because("Empty: all pods of the namespace.", {}),
                "policyTypes": because(
                    "Only what comes in is restricted. Pods go on reaching DNS, registries, storage and models outside; a rule for what "
                    "goes out would have to name all of them.",
                    ["Ingress"],
                ),
                "ingress": because("Members of a gang, and clients of model servers in this namespace.", [{"from": [{"podSelector": {}}]}]),
            },
        },
    )
    if description.prometheus:
        monitoring = prometheus_namespace(description)
        yield because(
            "Prometheus reads the metrics of model servers. Policies add up, so this one opens nothing else.",
            {
                "apiVersion": "networking.k8s.io/v1",
                "kind": "NetworkPolicy",
                "metadata": {"name": "monitoring", "namespace": namespace},
                "spec": {
                    "podSelector": because("Empty: all pods of the namespace.", {}),
                    "policyTypes": ["Ingress"],
                    "ingress": because(
                        "Kubernetes itself sets this label on each namespace, so that it cannot be given to another one.",
                        [{"from": [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: monitoring}}}]}],
                    ),
                },
            },
        )
