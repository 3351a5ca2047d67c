"""What a group's own nodes say against its node template, for a look at an account: the controller learns the same by itself."""

from collections.abc import Mapping

import msgspec

from gpuscaler.clouds.aws.api.groups import HERE
from gpuscaler.clouds.aws.discovery.pools import FoundPool
from gpuscaler.model.live_templates import is_complete, shown_by, with_devices, with_labels, with_resources
from gpuscaler.model.nodes import Node


def compared(found: FoundPool, nodes: Mapping[str, Node]) -> FoundPool:
    """The pool as its nodes, by EC2's ids of their machines, show it; nodes that are not ready or lack their devices show nothing yet."""
    live: dict[str, list[Node]] = {}
    for machine in found.group.machines:
        node = nodes.get(machine.id)
        if node is not None and node.ready and machine.state in HERE:
            live.setdefault(machine.instance_type, []).append(node)
    offerings, said = [], dict[str, None]()
    for offering in found.pool.offerings:
        complete = [node for node in live.get(offering.instance_type, ()) if is_complete(node, offering.allocatable)]
        if complete:
            shown = shown_by(offering, complete)
            offering = with_devices(with_resources(with_labels(offering, shown), shown.resources), shown.devices)
            said |= dict.fromkeys(shown.words)
        offerings.append(offering)
    shared = set(offerings[0].labels.items()).intersection(*(one.labels.items() for one in offerings[1:]))
    # A pool's nodes are told by these: what they do not carry would lose them.
    matching = {key: value for key, value in shared if key in found.pool.match_labels}
    pool = msgspec.structs.replace(found.pool, offerings=tuple(offerings), match_labels=matching)
    return msgspec.structs.replace(found, pool=pool, warnings=(*found.warnings, *said))
