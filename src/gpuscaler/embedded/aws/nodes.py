"""The instances of an account as Nodes of a cluster, named and labelled as EKS's are."""

from collections.abc import Iterator
from typing import Final

from msgspec.structs import replace

from gpuscaler.catalogue import lookup
from gpuscaler.catalogue.node_labels import node_labels
from gpuscaler.clouds.machines import CloudEvent, CloudMachine
from gpuscaler.embedded.aws.instances import private_name
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Group
from gpuscaler.embedded.machines import Machines, Naming
from gpuscaler.model.taints import Taint

SCHEME: Final = "aws:///"
_TEMPLATE: Final = "k8s.io/cluster-autoscaler/node-template/"


def provider_id(machine: CloudMachine) -> str:
    """What ``spec.providerID`` of the instance's Node says."""
    return f"{SCHEME}{machine.offering.zone}/{machine.id}"


NAMING: Final = Naming(node=private_name, provider_id=provider_id, scheme=SCHEME)


def follow(region: Region, machines: Machines) -> None:
    """Have a Node for each instance of a group of ``region``: with the labels and taints that the group's node-template tags speak of."""

    def hear(event: CloudEvent) -> None:
        machine = event.machine
        instance = region.instances.get(machine.id) if machine is not None else None
        if machine is None or instance is None or not instance.group:
            return
        shown = replace(machine, offering=replace(machine.offering, pool=instance.group))
        if (group := region.groups.get(instance.group)) is not None:
            shown = dressed(shown, region.name, group)
        machines.hear(replace_machine(event, shown))

    region.heard.append(hear)


def replace_machine(event: CloudEvent, machine: CloudMachine) -> CloudEvent:
    """The event, of ``machine``."""
    return CloudEvent(event.at, event.kind, machine, gone_at=event.gone_at, why=event.why)


def dressed(machine: CloudMachine, region: str, group: Group) -> CloudMachine:
    """A machine with what its kubelet says of it."""
    offering = machine.offering
    known = lookup(offering.instance_type)
    labels = node_labels(
        pool=group.name,
        instance_type=offering.instance_type,
        market=offering.market,
        zone=offering.zone,
        region=region,
        arch=known.arch if known else "amd64",
        cloud="aws",
        known=known,
        allocatable=offering.allocatable,
    )
    told = dict(_tags(group, "label/"))
    taints = tuple(
        Taint(key, value, effect) for key, text in _tags(group, "taint/") for value, _, effect in [text.rpartition(":")] if effect
    )
    return replace(machine, offering=replace(offering, labels={**labels, **told}, taints=taints))


def _tags(group: Group, kind: str) -> Iterator[tuple[str, str]]:
    prefix = _TEMPLATE + kind
    for key, tag in group.tags.items():
        if key.startswith(prefix):
            yield key.removeprefix(prefix), tag["Value"]
