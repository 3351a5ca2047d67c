"""Options and error messages shared by commands that talk to a cluster."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.errors import ApiError, Unreachable

#: Exit statuses: the cluster cannot be reached, or denies access.
UNREACHABLE, FORBIDDEN = 3, 5

F = TypeVar("F", bound=Callable[..., Any])

_KUBECONFIG = click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Path of a kubeconfig; default: as for kubectl (KUBECONFIG, ~/.kube/config, the pod's service account).",
)
_CONTEXT = click.option("--context", default="", metavar="NAME", help="Context of the kubeconfig; default: its current one.")


def access_options(command: F) -> F:
    """``--kubeconfig`` and ``--context``."""
    return _KUBECONFIG(_CONTEXT(command))


#: A path type, so that shells complete file names; unreadable files are reported when they are opened.
FILE = click.Path(readable=False, allow_dash=True)


def cluster_options(command: F) -> F:
    """``--cluster``, as the argument ``files``, and the options of :func:`access_options`: files, or a live cluster."""
    option = click.option(
        "--cluster",
        "files",
        multiple=True,
        type=FILE,
        metavar="FILE",
        help="Kubernetes objects as printed by kubectl (JSON or YAML); repeatable; - is standard input. Default: read a live cluster.",
    )
    return option(access_options(command))


def refuse_files_and_access(files: tuple[str, ...], kubeconfig: Path | None, context: str) -> None:
    """Raise a usage error if both files and a live cluster are given."""
    if files and (kubeconfig is not None or context):
        raise click.UsageError("saw --cluster together with --kubeconfig or --context, expected files or a live cluster; omit one of them")


def resolve_access(kubeconfig: Path | None, context: str) -> "Access":
    """Return the access to the cluster; unusable settings end the command with exit code 2. Warnings go to standard error."""
    from gpuscaler.kube.errors import AccessError
    from gpuscaler.kube.incluster import find_access

    try:
        access = find_access(os.environ, kubeconfig=kubeconfig, context=context, attended=sys.stdin.isatty())
    except AccessError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    for warning in access.warnings:
        click.echo(f"warning: {warning}", err=True)
    return access


def namespace_of(option: str, access: "Access") -> str:
    """Return the namespace of gpuscaler's own objects: ``option`` unless empty, else the pod's namespace, else kube-system."""
    return option or (access.namespace if access.in_pod else "kube-system")


def describe_failure(access: "Access", error: "ApiError | Unreachable") -> tuple[str, int]:
    """What came instead of an answer and what to do, as one sentence, and the exit status of the command."""
    from gpuscaler.kube.errors import Forbidden, NotApiServerError, Unauthorized, Unreachable

    place = f"{access.server} ({access.source}): "
    if isinstance(error, NotApiServerError):
        advice = "no Kubernetes API server answers there: check its address, the proxies in front of it, and the context"
        return f"{place}{error}; {advice}", UNREACHABLE
    if isinstance(error, Unreachable):
        # Only exceptions of the transport name the server.
        where = "" if str(error).startswith(access.server) else place
        return f"{where}{error}; expected an API server that answers: check the server, the network and the context", UNREACHABLE
    if isinstance(error, Unauthorized):
        return f"{place}saw {error}, expected valid credentials; log in again", FORBIDDEN
    if isinstance(error, Forbidden):
        return f"{place}saw {error}, expected permission for it; add it to a role of this user", FORBIDDEN
    return f"{place}saw {error}, expected an answer", UNREACHABLE


@contextmanager
def report_api_errors(access: "Access") -> Iterator[None]:
    """Report the error of an API server, and end the command with the matching exit status."""
    from gpuscaler.kube.errors import ApiError, Unreachable

    try:
        yield
    except (ApiError, Unreachable) as error:
        text, status = describe_failure(access, error)
        click.echo(text, err=True)
        sys.exit(status)
