"""What commands that may run a real control plane share: how it is asked for, and what is said while it is compiled."""

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpuscaler.embedded.controlplane.building import Programs

EMBEDDED, REAL = "embedded", "real"

F = TypeVar("F", bound=Callable[..., Any])

_WHICH = click.option(
    "--control-plane",
    default=EMBEDDED,
    show_default=True,
    type=click.Choice((EMBEDDED, REAL)),
    help="Our own, in this process, or Kubernetes' own: it is compiled the first time, which takes minutes.",
)
_RELEASE = click.option("--kubernetes", metavar="VERSION", help="The release of a real control plane; the default is 1.35.4.")


def control_plane_options(command: F) -> F:
    """``--control-plane`` and ``--kubernetes``."""
    return _WHICH(_RELEASE(command))


def check(control_plane: str, kubernetes: str | None) -> None:
    """Refuse a release of Kubernetes where none is run."""
    if kubernetes is not None and control_plane != REAL:
        raise click.BadParameter(f"saw {kubernetes} without --control-plane real, expected both; add it", param_hint="--kubernetes")


def compiled(kubernetes: str | None) -> "Programs":
    """The programs of a release, compiled first where that was not done yet; says on standard error how far it is."""
    from gpuscaler.embedded.controlplane.building import DEFAULT, Progress, programs
    from gpuscaler.embedded.controlplane.golang import BuildError

    drawn = sys.stderr.isatty()

    def count(packages: int) -> None:
        if drawn:
            click.echo(f"\r{packages:,} packages compiled, of some 2,000", err=True, nl=False)

    def say(text: str) -> None:
        click.echo(text, err=True)

    try:
        found = programs(kubernetes or DEFAULT, environ=os.environ, progress=Progress(say, count))
    except BuildError as error:
        click.echo(f"{error}", err=True)
        sys.exit(2)
    if drawn:
        click.echo("\r\x1b[K", err=True, nl=False)
    return found


@contextmanager
def ended() -> Iterator[None]:
    """Say it where a program of a control plane has ended, and end the command with the status for what cannot be reached."""
    from gpuscaler.embedded.controlplane.processes import EndedError

    try:
        yield
    except EndedError as error:
        click.echo(str(error), err=True)
        sys.exit(3)
