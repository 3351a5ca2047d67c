"""Compares a pool's live nodes with its node template, for ``pools --compare``; the controller learns the same from nodes by itself."""

from collections.abc import Iterable

import msgspec

from gpuscaler.clouds.azure.discovery.pools import AzurePool
from gpuscaler.clouds.azure.templates.node_templates import AGENT_POOL_LABEL
from gpuscaler.clouds.discovery.comparing import corrected_pool
from gpuscaler.model.azure_names import fold_id, machine_name
from gpuscaler.model.nodes import Node
from gpuscaler.model.well_known import INSTANCE_TYPE_LABELS


def corrected_by_nodes(azure_pool: AzurePool, nodes: Iterable[Node]) -> AzurePool:
    """The pool corrected by its nodes among ``nodes``; nodes that are not ready or lack devices are ignored."""
    live: dict[str, list[Node]] = {}
    for node in nodes:
        if node.ready and _is_of(node, azure_pool):
            size = next((node.labels[key] for key in INSTANCE_TYPE_LABELS if key in node.labels), "")
            live.setdefault(size, []).append(node)
    pool, warnings = corrected_pool(azure_pool.pool, live)
    return msgspec.structs.replace(azure_pool, pool=pool, warnings=(*azure_pool.warnings, *warnings))


def _is_of(node: Node, azure_pool: AzurePool) -> bool:
    """Whether a node's machine is of the pool: of its scale set, by the set's name in its own, or with the label of its agent pool."""
    machine, scale_set, agent_pool = machine_name(node.provider_id), azure_pool.scale_set, azure_pool.agent_pool
    if machine is None or fold_id(machine.subscription) != fold_id(azure_pool.subscription):
        return False
    if fold_id(machine.group) != fold_id(azure_pool.resource_group):
        return False
    if scale_set is None:
        return not machine.scale_set and agent_pool is not None and node.labels.get(AGENT_POOL_LABEL) == agent_pool.name
    if scale_set.is_flexible:
        return not machine.scale_set and fold_id(machine.name).startswith(f"{fold_id(scale_set.name)}_")
    return fold_id(machine.scale_set) == fold_id(scale_set.name)
