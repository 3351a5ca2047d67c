"""Corrects a pool's node templates by its live nodes, for ``pools --compare``; the controller learns the same from nodes by itself."""

from collections.abc import Iterable, Mapping

import msgspec

from gpuscaler.model.live_templates import is_complete, template_differences, with_devices, with_labels, with_resources
from gpuscaler.model.nodes import Node
from gpuscaler.model.pools import Pool


def corrected_pool(pool: Pool, nodes: Mapping[str, Iterable[Node]]) -> tuple[Pool, tuple[str, ...]]:
    """(the pool corrected by its ready ``nodes``, by instance type; a sentence for each difference). Nodes without devices are ignored."""
    offerings, warnings = [], dict[str, None]()
    for offering in pool.offerings:
        complete = [node for node in nodes.get(offering.instance_type, ()) if is_complete(node, offering.allocatable)]
        if complete:
            shown = template_differences(offering, complete)
            offering = with_devices(with_resources(with_labels(offering, shown), shown.resources), shown.devices)
            warnings |= dict.fromkeys(shown.words)
        offerings.append(offering)
    shared = set(offerings[0].labels.items()).intersection(*(offering.labels.items() for offering in offerings[1:]))
    # Labels that identify a pool's nodes: one that the nodes do not carry would make them unrecognisable.
    matching = {key: value for key, value in shared if key in pool.match_labels}
    return msgspec.structs.replace(pool, offerings=tuple(offerings), match_labels=matching), tuple(warnings)
