"""Lists in pages, for servers that cannot stream them."""

from collections.abc import AsyncGenerator

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.resources import Resource

#: Objects a page, as client-go asks for; 3 MB of pods.
PAGE = 500


class PageMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str | None = None
    next_page: str | None = msgspec.field(default=None, name="continue")


class Page(msgspec.Struct):
    """One page; its items are left as they are, and pin the page while they are kept."""

    metadata: PageMetadata = PageMetadata()
    items: list[msgspec.Raw] | None = None


_page = msgspec.json.Decoder(Page).decode


async def pages(client: Client, resource: Resource, *, limit: int = PAGE) -> AsyncGenerator[Page, None]:
    """The pages of one consistent list.

    No resource version is asked for: the answer is the newest state, and servers page it, which they do not when they may answer from
    their cache. Raises :class:`~gpuscaler.kube.errors.Gone` when the list expires on the way. Its token to go on with what is newest is
    not used: the pages before and after it belong to two states of the cluster, and a watch could begin at neither.
    """
    token = ""
    while True:
        body = await client.get_page(resource, limit=limit, continue_=token)
        try:
            page = _page(body)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise Unreachable(f"list of {resource.label}: saw {len(body)} bytes that are no List as JSON ({error})") from error
        yield page
        token = page.metadata.next_page or ""
        if not token:
            return
