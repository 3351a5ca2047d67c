"""Reads lists in pages, for servers that cannot stream them."""

from collections.abc import AsyncGenerator

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.resources import Resource

#: Objects per page, as in client-go; 3 MB of pods.
PAGE = 500


class PageMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str | None = None
    next_page: str | None = msgspec.field(default=None, name="continue")


class Page(msgspec.Struct):
    """One page; its items are undecoded, and keep the page in memory as long as they exist."""

    metadata: PageMetadata = PageMetadata()
    items: list[msgspec.Raw] | None = None


_page = msgspec.json.Decoder(Page).decode


async def pages(client: Client, resource: Resource, *, limit: int = PAGE) -> AsyncGenerator[Page, None]:
    """The pages of one consistent list.

    No resource version is requested: the answer is then the newest state, in pages, which servers do not use if they may answer from
    their cache. Raises :class:`~gpuscaler.kube.errors.Gone` when the list expires on the way. Its token for continuing with the newest
    state is not used: the pages before and after it would belong to two states of the cluster, and a watch could start from neither.
    """
    token = ""
    while True:
        body = await client.get_page(resource, limit=limit, continue_=token)
        try:
            page = _page(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unreachable(f"list of {resource.label}: saw {len(body)} bytes that are not a List in JSON ({error})") from error
        yield page
        token = page.metadata.next_page or ""
        if not token:
            return
