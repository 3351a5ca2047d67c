"""Pages of lists as the server sends them."""

import msgspec

from gpuscaler.kube.errors import Unreachable
from gpuscaler.kube.resources import Resource
from gpuscaler.model.decoding.depth import split_list


class PageMetadata(msgspec.Struct, frozen=True, gc=False, rename="camel"):
    resource_version: str | None = None
    next_page: str | None = msgspec.field(default=None, name="continue")


class Page(msgspec.Struct):
    """One page; its items are undecoded, and keep the page in memory as long as they exist."""

    of_list: PageMetadata | None = msgspec.field(default=None, name="metadata")
    items: list[msgspec.Raw] | None = None
    #: Whether some of the items may be nested more deeply than they can be decoded.
    is_deep: bool = False

    @property
    def metadata(self) -> PageMetadata:
        return self.of_list or PageMetadata()


_page = msgspec.json.Decoder(Page).decode


def page_of(body: bytes, resource: Resource) -> Page:
    """The page in ``body``; raises :class:`Unreachable` if it is none.

    Anyone who may write one object can nest a field of it so deeply that the decoder gives up: that concerns this object only.
    """
    try:
        try:
            return _page(body)
        except RecursionError:
            rest, items = split_list(body)
            page = _page(rest)
            page.items, page.is_deep = list(map(msgspec.Raw, items)), True
            return page
    except (msgspec.MsgspecError, RecursionError) as error:
        raise Unreachable(f"list of {resource.label}: saw {len(body)} bytes that are not a List in JSON ({error})") from error
