"""Device plugins as their vendors ship them: which DaemonSet provides which extended resource, and what its pods tolerate.

Sources: ``nvidia-device-plugin.yml`` of NVIDIA/k8s-device-plugin, ``k8s-ds-amdgpu-dp.yaml`` of ROCm/k8s-device-plugin,
``habana-k8s-device-plugin.yaml`` of Habana, ``k8s-neuron-device-plugin.yml`` of aws-neuron-sdk and ``efa-k8s-device-plugin.yml`` of
aws-efa-eks. Their images, volumes and lists of instance types are left out: nothing here runs them.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

from msgspec import Struct

NAMESPACE: Final = "kube-system"
#: The prefix of DaemonSets for resources without a vendor in the table.
GENERIC: Final = "device-plugin-of-"
_CRITICAL: Final[Mapping[str, str]] = {"key": "CriticalAddonsOnly", "operator": "Exists"}


class Plugin(Struct, frozen=True):
    """A DaemonSet that provides the resources that begin with one of ``resources``; ``app`` is its label ``name``."""

    name: str
    app: str
    resources: tuple[str, ...]
    tolerates: tuple[str, ...]
    addon: bool = False

    def makes(self, resource: str) -> bool:
        return resource.startswith(self.resources)

    def manifest(self) -> dict[str, Any]:
        """The DaemonSet as the vendor ships it."""
        shipped = [{"key": key, "operator": "Exists", "effect": "NoSchedule"} for key in self.tolerates]
        tolerations = [*([dict(_CRITICAL)] if self.addon else []), *shipped]
        spec = {
            "tolerations": tolerations,
            "priorityClassName": "system-node-critical",
            "containers": [{"name": "plugin", "image": f"{self.app}:1"}],
        }
        labels = {"name": self.app}
        return {
            "apiVersion": "apps/v1",
            "kind": "DaemonSet",
            "metadata": {"name": self.name, "namespace": NAMESPACE},
            "spec": {
                "selector": {"matchLabels": labels},
                "updateStrategy": {"type": "RollingUpdate"},
                "template": {"metadata": {"labels": labels}, "spec": spec},
            },
        }


PLUGINS: Final = (
    Plugin("nvidia-device-plugin-daemonset", "nvidia-device-plugin-ds", ("nvidia.com/",), ("nvidia.com/gpu",)),
    Plugin("amdgpu-device-plugin-daemonset", "amdgpu-dp-ds", ("amd.com/",), (), addon=True),
    Plugin("habanalabs-device-plugin-daemonset", "habanalabs-device-plugin-ds", ("habana.ai/",), ("habana.ai/gaudi",)),
    Plugin("neuron-device-plugin-daemonset", "neuron-device-plugin-ds", ("aws.amazon.com/neuron",), ("aws.amazon.com/neuron",), addon=True),
    Plugin(
        "aws-efa-k8s-device-plugin-daemonset",
        "aws-efa-k8s-device-plugin",
        ("vpc.amazonaws.com/efa",),
        # Not shipped: users whose GPU nodes have this taint add it, or their EFA devices never appear (aws-samples/aws-efa-eks#3).
        ("aws.amazon.com/efa", "nvidia.com/gpu"),
        addon=True,
    ),
)
_NAMES: Final = frozenset(plugin.name for plugin in PLUGINS)


def plugin_of(resource: str) -> Plugin:
    """The plugin that provides a resource; one of its own for a resource without a vendor in the table."""
    for plugin in PLUGINS:
        if plugin.makes(resource):
            return plugin
    name = GENERIC + re.sub(r"[^a-z0-9]+", "-", resource.lower()).strip("-")
    return Plugin(name, name, (resource,), (resource,))


def is_plugin(namespace: str, daemon_set: str) -> bool:
    """Whether a DaemonSet is one of these."""
    return namespace == NAMESPACE and (daemon_set in _NAMES or daemon_set.startswith(GENERIC))
