"""Compares a group's live nodes with its node template, for ``pools --compare``; the controller learns the same from nodes by itself."""

from collections.abc import Mapping

import msgspec

from gpuscaler.clouds.aws.api.groups import PRESENT_STATES
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.clouds.discovery.comparing import corrected_pool
from gpuscaler.model.nodes import Node


def corrected_by_nodes(aws_pool: AwsPool, nodes: Mapping[str, Node]) -> AwsPool:
    """The pool corrected by its ``nodes``, by EC2 id of their machines; nodes that are not ready or lack devices are ignored."""
    live: dict[str, list[Node]] = {}
    for machine in aws_pool.group.machines:
        node = nodes.get(machine.id)
        if node is not None and node.ready and machine.state in PRESENT_STATES:
            live.setdefault(machine.instance_type, []).append(node)
    pool, warnings = corrected_pool(aws_pool.pool, live)
    return msgspec.structs.replace(aws_pool, pool=pool, warnings=(*aws_pool.warnings, *warnings))
