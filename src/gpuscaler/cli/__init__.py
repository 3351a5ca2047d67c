"""The command line: parse, call, print. One file per command, imported when it is called."""

import errno
import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

import click

from gpuscaler import __version__

#: Commands by name: the module that holds each, under the command's own name, and what the overview says of it.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "bench": ("gpuscaler.cli.bench", "Run a published table again and compare."),
    "check-proof": ("gpuscaler.cli.proofs", "Check that a plan's lower bound holds."),
    "cluster": ("gpuscaler.cli.cluster", "Run a small Kubernetes cluster in this process."),
    "convert": ("gpuscaler.cli.convert", "Print old manifests in versions that clusters serve now."),
    "demo": ("gpuscaler.cli.demo", "Watch a cluster in this process being scaled, for a minute."),
    "exporter": ("gpuscaler.cli.exporter", "Measure the GPUs of this node, and for which pod, for Prometheus."),
    "generate": ("gpuscaler.cli.generate", "Write a trace drawn from a published one's marginals."),
    "hold": ("gpuscaler.cli.hold", "Stop buying or removing machines, for a while or until resumed."),
    "metrics": ("gpuscaler.cli.metrics", "Serve GPU metrics to the HorizontalPodAutoscaler."),
    "open": ("gpuscaler.cli.opening", "Take the taints off that close machines."),
    "plan": ("gpuscaler.cli.plan", "Print what would be bought and given back for a cluster."),
    "pools": ("gpuscaler.cli.pools", "Print the pools that an AWS account has for the cluster."),
    "replay": ("gpuscaler.cli.replay", "Make the plan of a decision again and compare."),
    "record": ("gpuscaler.cli.record", "Record what runs on a cluster, and on which machines, as a trace."),
    "resume": ("gpuscaler.cli.hold", "End what hold began."),
    "run": ("gpuscaler.cli.run", "Run the controller on a cluster."),
    "simulate": ("gpuscaler.cli.simulate", "Replay a trace of jobs through the planner and print what it cost."),
    "status": ("gpuscaler.cli.status", "Print what the controller last wrote: pools, waiting pods, decisions."),
    "what-if": ("gpuscaler.cli.what_if", "Compare two pools files on one trace and explain the difference."),
    "validate": ("gpuscaler.cli.validate", "Check a pools file or a run file."),
    "why": ("gpuscaler.cli.why", "Explain a pod, a node or a HorizontalPodAutoscaler."),
}


class Commands(click.Group):
    """Commands that are imported only when they run, so that ``--version`` and completion stay fast."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  # click's signature
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, name: str) -> click.Command | None:  # noqa: ARG002  # click's signature
        if name not in COMMANDS:
            return None
        command = getattr(importlib.import_module(COMMANDS[name][0]), name.replace("-", "_"))
        assert isinstance(command, click.Command)
        return command

    def resolve_command(self, ctx: click.Context, args: list[str]) -> tuple[str | None, click.Command | None, list[str]]:
        from difflib import get_close_matches

        if args[0] not in COMMANDS and not ctx.resilient_parsing and (near := get_close_matches(args[0], COMMANDS, n=1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {near[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


def run() -> None:
    """The console script. Ctrl-C ends with 130, as the shell expects of an interrupted program, where click would say 1.

    A file that cannot be opened is told by the command that opens it; a disk that fills up while writing is told here.
    """
    try:
        main(standalone_mode=False)
    except click.exceptions.Exit as stop:
        sys.exit(stop.exit_code)
    except click.ClickException as error:
        error.show()
        sys.exit(error.exit_code)
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        sys.exit(130)
    except OSError as error:
        if error.errno not in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise
        name = f"{error.filename}: " if error.filename else ""
        click.echo(f"{name}saw {error.strerror or error}, expected to write the result; make room, or write elsewhere", err=True)
        _drop_unwritten()
        sys.exit(2)


def _drop_unwritten() -> None:
    """Let what the full disk did not take go nowhere: the interpreter writes it again when it ends, and would end with 120."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuscaler")
def main() -> None:
    """Scale GPU capacity on Kubernetes: the cheapest machines that really fit, given back when idle, every decision explained.

    Exit codes: 0 done, 1 the answer is no, 2 bad input, 3 a cluster does not answer, 4 gpuscaler is not installed there, 5 forbidden,
    130 interrupted.

    For completion in bash: eval "$(_GPUSCALER_COMPLETE=bash_source gpuscaler)"; zsh and fish likewise.
    """
