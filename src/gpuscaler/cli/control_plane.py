"""Options shared by commands that can run a real control plane, and the progress messages while it is compiled."""

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

_CONTROL_PLANE = click.option(
    "--control-plane",
    default=EMBEDDED,
    show_default=True,
    type=click.Choice((EMBEDDED, REAL)),
    help="The embedded control plane, or a real one of Kubernetes, which is compiled on first use (minutes).",
)
_RELEASE = click.option("--kubernetes", metavar="VERSION", help="Release of the real control plane; default: 1.35.4.")


def control_plane_options(command: F) -> F:
    """``--control-plane`` and ``--kubernetes``."""
    return _CONTROL_PLANE(_RELEASE(command))


def check_release_option(control_plane: str, kubernetes: str | None) -> None:
    """Reject ``--kubernetes`` without ``--control-plane real``."""
    if kubernetes is not None and control_plane != REAL:
        raise click.BadParameter(
            f"saw {kubernetes} without --control-plane real, expected both; add --control-plane real", param_hint="--kubernetes"
        )


def compile_programs(kubernetes: str | None) -> "Programs":
    """Return the programs of a release. They are compiled first if necessary, with progress on standard error."""
    from gpuscaler.embedded.controlplane.building import DEFAULT, Progress, programs
    from gpuscaler.embedded.controlplane.golang import BuildError

    terminal = sys.stderr.isatty()

    def count(packages: int) -> None:
        if terminal:
            click.echo(f"\r{packages:,} packages compiled of about 2,000", err=True, nl=False)

    def say(text: str) -> None:
        click.echo(text, err=True)

    try:
        built = programs(kubernetes or DEFAULT, environ=os.environ, progress=Progress(say, count))
    except BuildError as error:
        click.echo(f"{error}", err=True)
        sys.exit(2)
    if terminal:
        click.echo("\r\x1b[K", err=True, nl=False)
    return built


@contextmanager
def report_exited_programs() -> Iterator[None]:
    """Report a program of the control plane that has exited, and end the command with the exit status for an unreachable cluster."""
    from gpuscaler.embedded.controlplane.processes import EndedError

    try:
        yield
    except EndedError as error:
        click.echo(str(error), err=True)
        sys.exit(3)
