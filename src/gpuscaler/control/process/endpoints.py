"""The endpoint of a cloud in the settings, and the fence of a dry run."""

from typing import NoReturn

from gpuscaler.clouds.protocol import UNKNOWN, CloudError
from gpuscaler.control.process.running import UnusableError
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import NotFound
from gpuscaler.kube.services import with_cluster_ip


async def resolve_endpoint(client: Client, key: str, url: str) -> str:
    """``url`` of the setting ``key``, with the address of its Service if it names one. Raises :class:`UnusableError`."""
    try:
        return await with_cluster_ip(client, url)
    except NotFound as error:
        raise UnusableError(f"{key}: saw {url}, and {error}; expected a Service that exists; create it, or name another") from error


def dry_run_fence(_seconds: float) -> NoReturn:
    """The fence on a dry run."""
    raise CloudError(UNKNOWN, "a dry run changes nothing")
