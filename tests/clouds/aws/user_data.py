"""User data that registers nodes with what the tags of their group promise."""

import base64
from collections.abc import Mapping

import yaml

from gpuscaler.clouds.discovery.hints import hints_of
from gpuscaler.model.well_known import ARRIVING_TAINT


def encoded(text: str) -> str:
    """Encoded as in launch templates."""
    return base64.b64encode(text.encode()).decode()


def node_config(tags: Mapping[str, str], *, arriving: bool = True) -> str:
    """nodeadm's configuration with the labels and taints of ``tags``, and our taint if ``arriving``."""
    hints = hints_of(tags)
    taints = [{"key": taint.key, "value": taint.value, "effect": taint.effect} for taint in hints.taints]
    if arriving:
        taints.append({"key": ARRIVING_TAINT, "value": "", "effect": "NoSchedule"})
    kubelet: dict[str, object] = {"config": {"registerWithTaints": taints}}
    if hints.labels:
        kubelet["flags"] = [f"--node-labels={','.join(f'{key}={value}' for key, value in hints.labels.items())}"]
    return yaml.safe_dump({"apiVersion": "node.eks.aws/v1alpha1", "kind": "NodeConfig", "spec": {"kubelet": kubelet}})
