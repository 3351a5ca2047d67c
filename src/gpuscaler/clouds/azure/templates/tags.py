"""Tags of scale sets in the form of Kubernetes' names: Azure's keys hold no slash.

Cluster Autoscaler writes ``_`` for ``/`` and ``~2`` for a literal underscore: ``k8s.io_cluster-autoscaler_node-template_label_sku`` is
``k8s.io/cluster-autoscaler/node-template/label/sku``. Source: ``cloudprovider/azure/azure_template.go``.
"""

from collections.abc import Mapping
from typing import Final

from gpuscaler.clouds.discovery.hints import Hints, hints_of

#: Prefixes of keys that are written in this way; all other tags are the user's own and stay as they are.
_PREFIXES: Final = ("k8s.io_cluster-autoscaler_", "gpuscaler.io_")
#: The part of a key behind which the name of a cluster or label follows.
_UNDERSCORE: Final = "~2"


def decoded_tags(tags: Mapping[str, str]) -> dict[str, str]:
    """``tags`` with the keys of Kubernetes' names in place of Azure's spelling of them."""
    return {decoded_key(key): value for key, value in tags.items()}


def decoded_key(key: str) -> str:
    """One key; unchanged if it is not one of Cluster Autoscaler or gpuscaler. Azure ignores the case of keys."""
    if not key.lower().startswith(_PREFIXES):
        return key
    prefix = next(prefix for prefix in _PREFIXES if key.lower().startswith(prefix))
    return (prefix + key[len(prefix) :]).replace("_", "/").replace(_UNDERSCORE, "_")


def encoded_key(key: str) -> str:
    """The reverse of :func:`decoded_key`, for messages and documentation."""
    return key.replace("_", _UNDERSCORE).replace("/", "_")


def tag_hints(tags: Mapping[str, str]) -> Hints:
    """What the tags of a scale set say about its nodes."""
    spelling = {decoded_key(key): key for key in tags}
    return hints_of(decoded_tags(tags), spelling=spelling)
