"""Which GPU product a node has: by its labels, by what its type is known to be sold with, and else by the type itself."""

from collections.abc import Mapping

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, PRODUCT_LABELS
from gpuscaler.planning.capacity.node_templates import Templates


def product(node: Node, products: Mapping[str, str]) -> str:
    """The GPU product of a node with accelerators; where nothing tells it, one instance type is one product."""
    instance_type = first_label(node, INSTANCE_TYPE_LABELS)
    return products.get(instance_type) or first_label(node, PRODUCT_LABELS) or instance_type


def own_product(node: Node) -> str:
    """The GPU product of a node by itself; where no label tells it, one instance type is one product. "" without accelerators."""
    if found := first_label(node, PRODUCT_LABELS):
        return found
    return first_label(node, INSTANCE_TYPE_LABELS) if any(map(is_device, node.allocatable)) else ""


def products_of_types(templates: Templates) -> dict[str, str]:
    """The GPU product of each instance type, as far as templates tell one.

    What labels a node's product is installed in some clusters and not in others, and names it in its own way.
    """
    found: dict[str, set[str]] = {}
    for node, offering in zip(templates.nodes, templates.offerings, strict=True):
        found.setdefault(first_label(node, INSTANCE_TYPE_LABELS), set()).add(first_label(node, PRODUCT_LABELS) or offering.product)
    return {instance_type: one for instance_type, names in found.items() if len(names) == 1 for one in names if one}
