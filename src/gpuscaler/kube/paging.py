"""Reads lists in pages, for servers that cannot stream them."""

from collections.abc import AsyncGenerator

from gpuscaler.kube.client import Client
from gpuscaler.kube.lists import Page, page_of
from gpuscaler.kube.resources import Resource

#: Objects per page, as in client-go; 3 MB of pods.
PAGE = 500


async def pages(client: Client, resource: Resource, *, limit: int = PAGE) -> AsyncGenerator[Page, None]:
    """The pages of one consistent list.

    No resource version is requested: the answer is then the newest state, in pages, which servers do not use if they may answer from
    their cache. Raises :class:`~gpuscaler.kube.errors.Gone` when the list expires on the way. Its token for continuing with the newest
    state is not used: the pages before and after it would belong to two states of the cluster, and a watch could start from neither.
    """
    token = ""
    while True:
        body = await client.get_page(resource, limit=limit, continue_=token)
        page = page_of(body, resource)
        yield page
        token = page.metadata.next_page or ""
        if not token:
            return
