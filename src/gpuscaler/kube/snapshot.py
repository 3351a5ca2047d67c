"""A cluster as it is at one moment, listed once and not watched."""

from typing import NamedTuple

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.errors import Forbidden, NotFound
from gpuscaler.kube.resources import WATCHED, Resource
from gpuscaler.model.aside import SetAside
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner


class Snapshot(NamedTuple):
    """``withheld`` are optional resources that the server has and does not let us read; they are planned without."""

    cluster: Cluster
    withheld: tuple[str, ...] = ()


async def snapshot(client: Client) -> Snapshot:
    """Everything that planning reads. Raises :class:`ApiError` or :class:`Unreachable` where what it cannot do without is not to be had."""
    interner = Interner()
    items: list[Item] = []
    aside: list[SetAside] = []
    withheld: list[str] = []
    for resource in WATCHED:
        try:
            served, objects = await _listed(client, resource)
        except NotFound:
            if not resource.optional:
                raise
            continue
        except Forbidden:
            if not resource.optional:
                raise
            withheld.append(resource.label)
            continue
        decoder = ObjectDecoder(served, interner)
        for data in objects:
            found = decoder.read(data)
            items += found.items
            if found.aside is not None:
                aside.append(found.aside)
    return Snapshot(Cluster.of(items, aside), tuple(withheld))


async def _listed(client: Client, resource: Resource) -> tuple[Resource, list[bytes]]:
    """The objects, in the newest version that the server has."""
    for version in resource.older:
        try:
            return resource, await client.list_all(resource)
        except NotFound:
            resource = resource.at(version)
    return resource, await client.list_all(resource)
