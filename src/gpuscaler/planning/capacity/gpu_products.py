"""The GPU product of a node: by the product known for its instance type, by its labels, or else by the type itself."""

from collections.abc import Mapping

from gpuscaler.model.accelerators import is_device
from gpuscaler.model.nodes import Node, first_label
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS, PRODUCT_LABELS
from gpuscaler.planning.capacity.node_templates import Templates


def product(node: Node, products: Mapping[str, str]) -> str:
    """The GPU product of a node with accelerators; where it is unknown, each instance type is its own product."""
    instance_type = first_label(node, INSTANCE_TYPE_LABELS)
    return products.get(instance_type) or first_label(node, PRODUCT_LABELS) or instance_type


def own_product(node: Node) -> str:
    """The GPU product by the node's own labels; without such a label each instance type is its own product. "" without accelerators."""
    if label := first_label(node, PRODUCT_LABELS):
        return label
    return first_label(node, INSTANCE_TYPE_LABELS) if any(map(is_device, node.allocatable)) else ""


def products_of_types(templates: Templates) -> dict[str, str]:
    """The GPU product of each instance type for which the templates name exactly one.

    The component that labels nodes with their product is not installed in every cluster, and uses its own names.
    """
    products: dict[str, set[str]] = {}
    for node, offering in zip(templates.nodes, templates.offerings, strict=True):
        products.setdefault(first_label(node, INSTANCE_TYPE_LABELS), set()).add(first_label(node, PRODUCT_LABELS) or offering.product)
    return {instance_type: name for instance_type, names in products.items() if len(names) == 1 for name in names if name}
