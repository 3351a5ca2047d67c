"""``gpuscaler doctor --smoke``: the options of the smoke test, its plan, and what is printed."""

import asyncio
import json
import shlex
import signal
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import wraps
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import click

from gpuscaler.cli.reaching import namespace_of, resolve_access

if TYPE_CHECKING:
    from gpuscaler.cli.doctor.following import SmokeRun
    from gpuscaler.cli.plan import PlanInputs
    from gpuscaler.doctor.smoke.job import SmokeTest
    from gpuscaler.kube.access import Access
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.model.pools import Policy
    from gpuscaler.model.taints import Toleration
    from gpuscaler.planning.plans import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class SmokeOptions:
    """The options as given; empty ones have their defaults."""

    dry: bool
    image: str
    command: str
    namespace: str
    resource: str
    tolerations: tuple[str, ...]
    node_selector: tuple[str, ...]
    deadline: str
    new_machine: bool
    #: The namespace of gpuscaler.
    controller: str


_OPTIONS = (
    click.option(
        "--smoke", is_flag=True, help="Run a Job with one GPU on a machine that the controller buys, and print where the time goes."
    ),
    click.option("--dry", is_flag=True, help="With --smoke: create nothing, and print what would be bought and what it costs."),
    click.option("--smoke-image", default="", metavar="IMAGE", help="Its image; default: Ubuntu."),
    click.option("--smoke-command", default="", metavar="COMMAND", help="Its command; default: nvidia-smi -L."),
    click.option("--smoke-namespace", default="default", metavar="NAME", show_default=True, help="Its namespace."),
    click.option("--smoke-resource", default="nvidia.com/gpu", metavar="NAME", show_default=True, help="What it requests one of."),
    click.option(
        "--smoke-toleration",
        "smoke_tolerations",
        multiple=True,
        metavar="KEY[=VALUE][:EFFECT]",
        help="A taint that it tolerates; repeatable. Default: the taints of the GPU pools of --config, else the usual ones.",
    ),
    click.option("--smoke-node-selector", multiple=True, metavar="KEY=VALUE", help="A label that its node must have; repeatable."),
    click.option("--smoke-deadline", default="30m", metavar="DURATION", show_default=True, help="When it is given up."),
    click.option(
        "--namespace", default="", metavar="NAME", help="With --smoke: namespace of gpuscaler; default: that of --config, else kube-system."
    ),
    click.option("--smoke-new-machine", is_flag=True, help="Use no machine that is there now, even if it has a free GPU."),
)


def smoke_options(command: Callable[..., None]) -> Callable[..., None]:
    """Add the options of the smoke test, passed as :class:`SmokeOptions` in ``smoke``; None without ``--smoke``."""

    @wraps(command)
    def wrapped(
        *args: Any,
        smoke: bool,
        dry: bool,
        smoke_image: str,
        smoke_command: str,
        smoke_namespace: str,
        smoke_resource: str,
        smoke_tolerations: tuple[str, ...],
        smoke_node_selector: tuple[str, ...],
        smoke_deadline: str,
        smoke_new_machine: bool,
        namespace: str,
        **options: Any,
    ) -> None:
        given = click.get_current_context()
        alone = [
            f"--{name.replace('_', '-').removesuffix('s')}"
            for name in given.params
            if (name in ("dry", "namespace") or name.startswith("smoke_"))
            and given.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE
        ]
        if alone and not smoke:
            raise click.UsageError(f"saw {alone[0]} without --smoke, expected both; add --smoke")
        smoke_settings = SmokeOptions(
            dry=dry,
            image=smoke_image,
            command=smoke_command,
            namespace=smoke_namespace,
            resource=smoke_resource,
            tolerations=smoke_tolerations,
            node_selector=smoke_node_selector,
            deadline=smoke_deadline,
            new_machine=smoke_new_machine,
            controller=namespace,
        )
        command(*args, smoke=smoke_settings if smoke else None, **options)

    decorated: Callable[..., None] = wrapped
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def smoke_test(kubeconfig: Path | None, context: str, config: str | None, options: SmokeOptions, *, as_json: bool) -> int:
    """Run the smoke test, or print its plan; returns the exit status."""
    from gpuscaler.cli.plan import account_of, load_settings

    settings = load_settings(config) if config is not None else None
    policy: Policy | None = None
    account = None
    if settings is not None:
        account = account_of(settings) if settings.has_account_pools else None
        policy = account.policy if account is not None else settings.policy
    test = _test(options, policy)
    if settings is None or policy is None:
        if options.dry:
            raise click.UsageError("saw --dry without --config, expected both; name the run file, whose pools are planned with")
    else:
        from gpuscaler.cli.plan import from_cluster

        now = time.time()
        inputs = from_cluster(kubeconfig, context, settings, policy, now, account=account)
        outlook = outlook_of(inputs, test, now=now, new_machine=options.new_machine)
        if options.dry and as_json:
            click.echo(json.dumps({"dry": True, **outlook.document}, indent=2))
        elif options.dry:
            click.echo("Dry run: nothing is created.")
        if not (options.dry and as_json):
            click.echo(outlook.text, err=not options.dry)
        if options.dry or not outlook.fits:
            return 0 if outlook.fits else 1
    namespace = options.controller or (settings.namespace if settings is not None else "")
    idle_after = {pool.name: pool.idle_after for pool in (policy.pools if policy is not None else ())}

    def run_of(client: "Client", access: "Access") -> "SmokeRun":
        from gpuscaler.cli.doctor.following import SmokeRun

        return SmokeRun(
            client=client,
            test=test,
            namespace=namespace_of(namespace, access),
            now=time.time,
            say=_say,
            idle_after=idle_after,
            new_machine=options.new_machine,
        )

    return _run(resolve_access(kubeconfig, context), run_of, as_json=as_json)


def _test(options: SmokeOptions, policy: "Policy | None") -> "SmokeTest":
    """The test with these options; unusable ones end the command with exit status 2."""
    from gpuscaler.doctor.smoke.job import IMAGE, USUAL_TOLERATIONS, SmokeTest, tolerations_of
    from gpuscaler.model.durations import DurationError, parse_duration

    try:
        deadline = parse_duration(options.deadline)
    except DurationError as error:
        raise click.BadParameter(str(error), param_hint="--smoke-deadline") from error
    if not 1 <= deadline <= 86_400:
        raise click.BadParameter(f"saw {options.deadline}, expected from 1s to 24h", param_hint="--smoke-deadline")
    try:
        command = tuple(shlex.split(options.command))
    except ValueError as error:
        raise click.BadParameter(f"saw {options.command!r}, expected a command: {error}", param_hint="--smoke-command") from error
    tolerations = tuple(map(_toleration, options.tolerations))
    if not tolerations and policy is not None:
        offerings = [offering for offering in policy.sold.values() if offering.allocatable.get(options.resource)]
        tolerations = tolerations_of(taint for offering in offerings for taint in offering.taints)
    return SmokeTest(
        name=f"gpuscaler-smoke-{uuid4().hex[:8]}",
        namespace=options.namespace,
        image=options.image or IMAGE,
        command=command,
        resource=options.resource,
        tolerations=tolerations if tolerations or policy is not None else USUAL_TOLERATIONS,
        node_selector=dict(map(_label, options.node_selector)),
        deadline=deadline,
    )


def _toleration(text: str) -> "Toleration":
    from gpuscaler.model.taints import Toleration

    taint, _, effect = text.partition(":")
    key, equals, value = taint.partition("=")
    if not key or effect not in ("", "NoSchedule", "NoExecute", "PreferNoSchedule"):
        seen = f"saw {text!r}, expected KEY, KEY=VALUE or KEY=VALUE:EFFECT such as nvidia.com/gpu:NoSchedule"
        raise click.BadParameter(seen, param_hint="--smoke-toleration")
    return Toleration(key, "Equal" if equals else "Exists", value, effect)


def _label(text: str) -> tuple[str, str]:
    key, equals, value = text.partition("=")
    if not key or not equals:
        raise click.BadParameter(f"saw {text!r}, expected KEY=VALUE such as gpuscaler.io/pool=gpu", param_hint="--smoke-node-selector")
    return key, value


@dataclass(frozen=True, slots=True)
class Outlook:
    """What a plan does for the test: whether it fits, the text for people, and the same as JSON."""

    fits: bool
    text: str
    document: Mapping[str, Any]


def outlook_of(inputs: "PlanInputs", test: "SmokeTest", *, now: float, new_machine: bool) -> Outlook:
    """Plan with the test's pod added."""
    from msgspec.structs import replace

    from gpuscaler.cli.changing import with_objects
    from gpuscaler.doctor.smoke.job import job_of
    from gpuscaler.model.well_known import HOSTNAME
    from gpuscaler.planning.planner import Planner

    if new_machine:
        names = [node.labels.get(HOSTNAME, node.name) for node in inputs.cluster.nodes.values() if node.allocatable.get(test.resource)]
        test = replace(test, avoided=tuple(sorted(names)))
    cluster = with_objects(inputs.cluster, [("--smoke", job_of(test))], now=now)
    plan = Planner(inputs.policy).plan(cluster, inputs.state, now)
    return _outlook(plan, f"{test.namespace}/{test.name}-0", inputs.policy)


def _outlook(plan: "Plan", pod: str, policy: "Policy") -> Outlook:
    from gpuscaler.control.records.costing import format_plan_price
    from gpuscaler.control.records.words import format_dollars, format_duration, format_offering
    from gpuscaler.planning.plans import unplaced_headline

    machine = next((machine for machine in plan.machines if pod in machine.pods), None)
    if machine is not None:
        idle = next(pool.idle_after for pool in policy.pools if pool.name == machine.pool)
        cost = machine.price_per_hour * idle / 3600.0
        text = (
            f"A machine would be bought: {format_offering(machine.key)}, pool {machine.pool}, at {format_plan_price([machine])}.\n"
            f"Afterwards it is kept for {format_duration(idle)} (idle_after), which costs {format_dollars(cost)}, beside the time of its "
            "start and of the Job."
        )
        fields = {"pool": machine.pool, "type": machine.instance_type, "market": machine.market, "zone": machine.zone}
        return Outlook(
            True, text, {"fits": True, "buys": {**fields, "price_per_hour": machine.price_per_hour, "idle_after": idle, "idle_cost": cost}}
        )
    place = next((placement.node for placement in plan.placements if placement.pod == pod), "")
    if place:
        text = f"Nothing would be bought: node {place} has room or is on its way. --smoke-new-machine forces a new machine."
        return Outlook(True, text, {"fits": True, "node": place})
    reasons = next((unplaced.reasons for unplaced in plan.unplaced if unplaced.pod == pod), ())
    ignored = next((entry.reason for entry in plan.ignored if entry.pod == pod), "")
    lines = [f"pool {reason.pool}: {reason.excluded_by}: {reason.detail}" for reason in reasons] or [ignored or "there is no pool"]
    headline = unplaced_headline(reasons)
    text = "\n".join((f"{headline[0].upper()}{headline[1:]}:", *(f"  {line}" for line in lines)))
    return Outlook(False, text, {"fits": False, "reasons": lines})


def _run(access: "Access", run_of: "Callable[[Client, Access], SmokeRun]", *, as_json: bool) -> int:
    from gpuscaler.cli.doctor.following import RefusedError
    from gpuscaler.cli.leading import run_with_transport
    from gpuscaler.kube.client import Client

    signals: list[int] = []

    async def follow(transport: "HttpTransport") -> int:
        run = run_of(Client(transport), access)
        with _cancelled_by_signals(signals, lambda: _say(f"still removing the Job; to do it yourself: {run.test.removal_command}")):
            try:
                verdict = await run.run()
            except RefusedError as error:
                _say(str(error))
                return 1
            except asyncio.CancelledError:
                if not signals:
                    raise
                return 128 + signals[0]
            finally:
                _print(run, as_json=as_json)
        return 0 if verdict.ran else 1

    return run_with_transport(access, follow)


class _cancelled_by_signals:  # noqa: N801 - used as a function
    """Cancels the current task at the first signal that ends programs and is not ignored, as SIGHUP is by nohup; ``received`` gets them.

    At each later one, ``again`` is called. SIGINT is among them, because asyncio ends all tasks at the second one.
    """

    def __init__(self, received: list[int], again: Callable[[], None]) -> None:
        self._received, self._again = received, again
        ending = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        self._numbers = [number for number in ending if signal.getsignal(number) is not signal.SIG_IGN]

    def __enter__(self) -> None:
        task, loop = asyncio.current_task(), asyncio.get_running_loop()
        assert task is not None

        def stop(number: int) -> None:
            self._received.append(number)
            if len(self._received) == 1:
                task.cancel()
            else:
                self._again()

        for number in self._numbers:
            loop.add_signal_handler(number, stop, number)

    def __exit__(self, *_error: object) -> None:
        for number in self._numbers:
            asyncio.get_running_loop().remove_signal_handler(number)


def _say(text: str) -> None:
    """Print a line of progress. The terminal may be gone, which must not keep the Job from being removed."""
    from gpuscaler.cli.printing import escape_controls

    with suppress(OSError, ValueError):
        click.echo(escape_controls(text), err=True)


def _print(run: "SmokeRun", *, as_json: bool) -> None:
    """Print the table of stages, how the test ended, and what is left."""
    with suppress(BrokenPipeError):
        if as_json:
            click.echo(json.dumps(document_of(run), indent=2))
        else:
            _print_text(run)


def document_of(run: "SmokeRun") -> dict[str, Any]:
    """The result as JSON."""
    stages = [{"stage": row.stage, "at": round(row.at, 1), "took": round(row.took, 1), "detail": row.detail} for row in run.timeline.rows()]
    verdict = run.verdict
    return {
        "job": f"{run.test.namespace}/{run.test.name}",
        "ran": verdict is not None and verdict.ran,
        "text": verdict.text if verdict is not None else "",
        "node": run.timeline.node,
        "new_node": run.timeline.on_new_node,
        "stages": stages,
        "machine": run.ending,
        "left": run.left,
    }


def _print_text(run: "SmokeRun") -> None:
    from rich.table import Table

    from gpuscaler.cli.printing import escape_controls, uncut_console
    from gpuscaler.control.records.words import format_duration

    rows = run.timeline.rows()
    if rows:
        table = Table(box=None, pad_edge=False)
        table.add_column("stage")
        table.add_column("at", justify="right")
        table.add_column("took", justify="right")
        for row in rows:
            table.add_row(row.stage, format_duration(row.at), format_duration(row.took))
        click.echo()
        uncut_console().print(table)
        click.echo()
    if run.ending:
        click.echo(escape_controls(run.ending))
    if run.verdict is not None:
        outcome = "The Job ran." if run.verdict.ran else f"The Job did not run: {run.verdict.text}"
        click.echo(escape_controls(outcome), err=not run.verdict.ran)
    if run.left:
        click.echo(escape_controls(f"Left behind: {run.left}"), err=True)
