"""A cluster at one moment, listed once and not watched."""

from typing import NamedTuple

from gpuscaler.kube.client import Client
from gpuscaler.kube.decode import ObjectDecoder
from gpuscaler.kube.errors import Forbidden, Gone, NotFound
from gpuscaler.kube.paging import pages
from gpuscaler.kube.resources import WATCHED, Resource
from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster, Item
from gpuscaler.model.decoding.interning import Interner


class Snapshot(NamedTuple):
    """``withheld`` are optional resources that the server has but does not let us read; planning does without them."""

    cluster: Cluster
    withheld: tuple[str, ...] = ()


async def snapshot(client: Client) -> Snapshot:
    """Everything that planning reads. Raises :class:`ApiError` or :class:`Unreachable` if a required resource is unavailable."""
    interner = Interner()
    items: list[Item] = []
    set_aside: list[Skipped] = []
    withheld: list[str] = []
    for resource in WATCHED:
        try:
            listed, skipped = await _list_newest(client, resource, interner)
        except NotFound:
            if not resource.optional:
                raise
        except Forbidden:
            if not resource.optional:
                raise
            withheld.append(resource.label)
        else:
            items += listed
            set_aside += skipped
    return Snapshot(Cluster.of(items, set_aside), tuple(withheld))


async def _list_newest(client: Client, resource: Resource, interner: Interner) -> tuple[list[Item], list[Skipped]]:
    """The objects, in the newest version that the server has."""
    for version in resource.older:
        try:
            return await _list_objects(client, resource, interner)
        except NotFound:
            resource = resource.at(version)
    return await _list_objects(client, resource, interner)


async def _list_objects(client: Client, resource: Resource, interner: Interner) -> tuple[list[Item], list[Skipped]]:
    """The objects, read page by page, since their JSON may be a gigabyte; restarted once if the list expires on the way."""
    decoder = ObjectDecoder(resource, interner)
    for last in (False, True):
        items: list[Item] = []
        set_aside: list[Skipped] = []
        try:
            async for page in pages(client, resource):
                for data in page.items or ():
                    decoded = decoder.read(data)
                    items += decoded.items
                    set_aside += [decoded.aside] if decoded.aside is not None else []
        except Gone:
            if last:
                raise
        else:
            return items, set_aside
    raise AssertionError("the second try returns or raises")
