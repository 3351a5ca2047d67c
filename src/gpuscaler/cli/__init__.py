"""The command line: parse, call, print. One file per command, imported when it is called."""

import errno
import importlib
import os
import sys
from collections.abc import Mapping
from contextlib import suppress

import click

from gpuscaler import __version__

#: Commands by name: the module that defines each (in an attribute of the command's name), and its line in the overview.
COMMANDS: Mapping[str, tuple[str, str]] = {
    "bench": ("gpuscaler.cli.bench", "Reproduce a published table and compare the results."),
    "check-proof": ("gpuscaler.cli.proofs", "Check that a plan's lower bound holds."),
    "cluster": ("gpuscaler.cli.cluster", "Run a small Kubernetes cluster in this process."),
    "convert": ("gpuscaler.cli.convert", "Convert old manifests to API versions that clusters serve now."),
    "demo": ("gpuscaler.cli.demo", "Watch gpuscaler scale a cluster in this process, for about a minute."),
    "doctor": ("gpuscaler.cli.doctor.command", "Find mistakes in a cluster, its account and its files."),
    "exporter": ("gpuscaler.cli.exporter", "Export GPU metrics of this node, per pod, for Prometheus."),
    "generate": ("gpuscaler.cli.generate", "Write set-up files of a cluster, permissions, or a trace of jobs."),
    "hold": ("gpuscaler.cli.hold", "Pause buying or removing machines, for a while or until resumed."),
    "metrics": ("gpuscaler.cli.metrics", "Serve GPU metrics to the HorizontalPodAutoscaler."),
    "open": ("gpuscaler.cli.opening", "Remove the taints that keep machines closed."),
    "plan": ("gpuscaler.cli.plan", "Print which machines would be bought and removed for a cluster."),
    "pools": ("gpuscaler.cli.pools", "Print the pools of the cluster found in a cloud account."),
    "replay": ("gpuscaler.cli.replay", "Recompute the plan of a decision and compare."),
    "record": ("gpuscaler.cli.record", "Record the pods and machines of a cluster as a trace."),
    "resume": ("gpuscaler.cli.hold", "End a hold."),
    "run": ("gpuscaler.cli.run", "Run the controller on a cluster."),
    "simulate": ("gpuscaler.cli.simulate", "Replay a trace of jobs through the planner and print the cost."),
    "status": ("gpuscaler.cli.status", "Print the controller's last status: pools, pending pods, decisions."),
    "what-if": ("gpuscaler.cli.what_if", "Compare two pools files on one trace and explain the difference."),
    "validate": ("gpuscaler.cli.validate", "Check a pools file or a run file."),
    "why": ("gpuscaler.cli.why", "Explain a pod, a node or a HorizontalPodAutoscaler."),
}


class Commands(click.Group):
    """Command group that imports a command only when it runs, so that ``--version`` and completion stay fast."""

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

        if args[0] not in COMMANDS and not ctx.resilient_parsing and (matches := get_close_matches(args[0], COMMANDS, n=1)):
            ctx.fail(f"No such command {args[0]!r}. Did you mean {matches[0]!r}?")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  # click's signature
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][1]) for name in sorted(COMMANDS)])


def run() -> None:
    """The console script. Ctrl-C exits with 130, as shells expect of an interrupted program; click would exit with 1.

    A command reports files that it cannot open; a disk that fills up while writing is reported here.
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
        click.echo(
            f"{name}saw {error.strerror or error}, expected a place with room for the result; free space, or write elsewhere", err=True
        )
        _drop_unwritten()
        sys.exit(2)


def _drop_unwritten() -> None:
    """Redirect standard output to null: otherwise the interpreter tries to flush it again at exit, and exits with 120."""
    with suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="gpuscaler")
def main() -> None:
    """Scale GPU capacity on Kubernetes: buy the cheapest machines that really fit, remove them when idle, explain every decision.

    Exit codes: 0 success, 1 the answer is no, 2 bad input, 3 a cluster does not answer, 4 gpuscaler is not installed there, 5 forbidden,
    130 interrupted.

    For completion in bash: eval "$(_GPUSCALER_COMPLETE=bash_source gpuscaler)"; zsh and fish likewise.
    """
