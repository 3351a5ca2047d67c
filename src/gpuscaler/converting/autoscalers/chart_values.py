"""Values of Cluster Autoscaler's own Helm chart, read as the workload that the chart makes of them.

Source: charts/cluster-autoscaler of kubernetes/autoscaler, values.yaml and templates/deployment.yaml, chart 9.x, November 2026.
"""

from typing import Any, Final

from gpuscaler.converting.objects import Json, get_items, get_mapping, text
from gpuscaler.converting.writing import write_value

#: The kind of what :func:`workload_of` returns, as reports name it.
CHART: Final = "Chart"
#: The ConfigMap of the priority expander, and where gpuscaler reads it.
PRIORITIES: Final = ("ConfigMap", "cluster-autoscaler-priority-expander")
PRIORITIES_NAMESPACE: Final = "kube-system"
_TAGS: Final = ("k8s.io/cluster-autoscaler/enabled", "k8s.io/cluster-autoscaler/{{ .Values.autoDiscovery.clusterName }}")
#: The region without the value.
_REGION: Final = "us-east-1"
_NAME: Final = "{{ .Values.autoDiscovery.clusterName }}"
#: Variables of the container by the values that they come from.
_VARIABLES: Final = {
    "awsRegion": "AWS_REGION",
    "azureSubscriptionID": "ARM_SUBSCRIPTION_ID",
    "azureResourceGroup": "ARM_RESOURCE_GROUP",
    "azureClusterName": "AZURE_CLUSTER_NAME",
    "azureNodeResourceGroup": "AZURE_NODE_RESOURCE_GROUP",
}


def workload_of(values: Any) -> Json | None:
    """The workload that the chart makes of ``values``; None if they are not of this chart."""
    if not isinstance(values, dict) or not isinstance(values.get("extraArgs", {}), dict):
        return None
    if not isinstance(values.get("autoDiscovery"), dict) and not isinstance(values.get("autoscalingGroups"), list):
        return None
    cloud = text(values.get("cloudProvider")) or "aws"
    words = [f"--cloud-provider={cloud}", *_groups(values, cloud)]
    words += _arguments(values)
    stated = {"awsRegion": _REGION, **values}
    variables = [{"name": name, "value": text(stated[key])} for key, name in _VARIABLES.items() if stated.get(key)]
    container = {"name": "cluster-autoscaler", "image": "cluster-autoscaler", "args": words, "env": variables}
    pods = {key: values[key] for key in ("nodeSelector", "tolerations") if values.get(key)}
    return {
        "apiVersion": "apps/v1",
        "kind": CHART,
        "metadata": {"name": "cluster-autoscaler"},
        "spec": {"template": {"spec": {"containers": [container], **pods}}},
    }


def priorities_of(values: Json) -> Json | None:
    """The ConfigMap of the priority expander that the chart makes of ``values``, in the namespace where gpuscaler reads it."""
    expanders = [word.removeprefix("--expander=") for word in _arguments(values) if word.startswith("--expander=")]
    if "priority" not in (name.strip() for expander in expanders for name in expander.split(",")):
        return None
    stated = values["expanderPriorities"]
    if isinstance(stated, dict):
        stated = write_value({int(text(key)) if text(key).isdecimal() else key: value for key, value in stated.items()})
    annotations = get_mapping(values, "priorityConfigMapAnnotations")
    metadata = {"name": PRIORITIES[1], "namespace": PRIORITIES_NAMESPACE} | ({"annotations": annotations} if annotations else {})
    return {"apiVersion": "v1", "kind": PRIORITIES[0], "metadata": metadata, "data": {"priorities": text(stated)}}


def _arguments(values: Json) -> list[str]:
    """The words of ``extraArgs``, in the order of the chart. What follows an underscore only makes keys differ."""
    words: list[str] = []
    for key, value in sorted(get_mapping(values, "extraArgs").items()):
        name = str(key).partition("_")[0]
        given = value if isinstance(value, list) else [value]
        words += [f"--{name}" if item is None else f"--{name}={text(item)}" for item in given if not isinstance(item, dict | list)]
    return words


def _groups(values: Json, cloud: str) -> list[str]:
    words = [
        f"--nodes={text(group.get('minSize', 0))}:{text(group.get('maxSize'))}:{text(group.get('name'))}"
        for group in get_items(values, "autoscalingGroups")
    ]
    discovery = get_mapping(values, "autoDiscovery")
    cluster = text(discovery.get("clusterName"))
    if cluster and cloud == "aws":
        stated = discovery.get("tags")
        tags = [text(tag).replace(_NAME, cluster) for tag in (stated if isinstance(stated, list) else _TAGS)]
        words.append(f"--node-group-auto-discovery=asg:tag={','.join(tags)}")
    elif cluster and cloud == "azure":
        words.append(f"--node-group-auto-discovery=label:cluster-autoscaler-enabled=true,cluster-autoscaler-name={cluster}")
    return words
