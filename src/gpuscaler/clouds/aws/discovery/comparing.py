"""Compares a group's live nodes with its node template, for ``pools --compare``; the controller learns the same from nodes by itself."""

from collections.abc import Mapping

import msgspec

from gpuscaler.clouds.aws.api.groups import PRESENT_STATES
from gpuscaler.clouds.aws.discovery.pools import AwsPool
from gpuscaler.model.live_templates import is_complete, template_differences, with_devices, with_labels, with_resources
from gpuscaler.model.nodes import Node


def corrected_by_nodes(aws_pool: AwsPool, nodes: Mapping[str, Node]) -> AwsPool:
    """The pool corrected by its ``nodes``, by EC2 id of their machines; nodes that are not ready or lack devices are ignored."""
    live: dict[str, list[Node]] = {}
    for machine in aws_pool.group.machines:
        node = nodes.get(machine.id)
        if node is not None and node.ready and machine.state in PRESENT_STATES:
            live.setdefault(machine.instance_type, []).append(node)
    offerings, warnings = [], dict[str, None]()
    for offering in aws_pool.pool.offerings:
        complete = [node for node in live.get(offering.instance_type, ()) if is_complete(node, offering.allocatable)]
        if complete:
            shown = template_differences(offering, complete)
            offering = with_devices(with_resources(with_labels(offering, shown), shown.resources), shown.devices)
            warnings |= dict.fromkeys(shown.words)
        offerings.append(offering)
    shared = set(offerings[0].labels.items()).intersection(*(offering.labels.items() for offering in offerings[1:]))
    # Labels that identify a pool's nodes: one that the nodes do not carry would make them unrecognisable.
    matching = {key: value for key, value in shared if key in aws_pool.pool.match_labels}
    pool = msgspec.structs.replace(aws_pool.pool, offerings=tuple(offerings), match_labels=matching)
    return msgspec.structs.replace(aws_pool, pool=pool, warnings=(*aws_pool.warnings, *warnings))
