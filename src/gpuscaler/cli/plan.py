"""``gpuscaler plan``: prints which machines would be bought and removed for a cluster, as a dry run."""

import os
import sys
import time
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, NamedTuple, cast

import click

from gpuscaler.cli.reaching import (
    FILE,
    cluster_options,
    namespace_of,
    refuse_files_and_access,
    report_api_errors,
    resolve_access,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from gpuscaler.cli.account import Account
    from gpuscaler.model.aside import Skipped
    from gpuscaler.model.cluster import Cluster
    from gpuscaler.model.pools import Policy
    from gpuscaler.planning.plans import Plan
    from gpuscaler.planning.state import State
    from gpuscaler.settings import RunSettings

#: What ``--cluster`` expects, in messages about files of another kind.
EXPECTED_CLUSTER = (
    "nodes and pods, as kubectl get nodes,pods --all-namespaces -o yaml prints them; "
    "a pools file or run file belongs to --pools, a trace of jobs to gpuscaler simulate"
)


@click.command()
@cluster_options
@click.option("--pools", "--config", "pools", required=True, type=FILE, metavar="FILE", help="The pools file, or a run file.")
@click.option("--now", metavar="RFC3339", help="Time of the plan, such as 2026-11-21T12:00:00Z; default: now.")
@click.option("--add-pods", multiple=True, type=FILE, metavar="FILE", help="Add these pods, Jobs or Deployments; repeatable.")
@click.option("--without-pool", multiple=True, metavar="NAME", help="Plan without buying in this pool; repeatable.")
@click.option("--price", "prices", multiple=True, metavar="TYPE=USD", help="Plan with this price per hour of a type; repeatable.")
@click.option(
    "--priorities",
    type=FILE,
    metavar="FILE",
    help="Priorities of pools: the ConfigMap cluster-autoscaler-priority-expander, or the YAML in it.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the plan as JSON.")
@click.option("--proof", type=FILE, metavar="FILE", help="Write the proof of the lower bound, for gpuscaler check-proof.")
def plan(
    *,
    files: tuple[str, ...],
    kubeconfig: Path | None,
    context: str,
    pools: str,
    now: str | None,
    add_pods: tuple[str, ...],
    without_pool: tuple[str, ...],
    prices: tuple[str, ...],
    priorities: str | None,
    as_json: bool,
    proof: str | None,
) -> None:
    """Print which machines would be bought and removed, for a cluster as it is or with what-if changes. Nothing is changed."""
    from msgspec.structs import replace

    from gpuscaler.cli.changing import input_hints, with_pods, with_prices, without_pools
    from gpuscaler.cli.printing import plan_json, print_plan
    from gpuscaler.cli.proofs import write_proof
    from gpuscaler.planning.planner import Planner

    refuse_files_and_access(files, kubeconfig, context)
    moment = parse_time(now) if now is not None else time.time()
    settings = load_settings(pools)
    account = account_of(settings) if settings.has_account_pools else None
    if account is not None:
        settings = replace(settings, policy=account.policy)
    policy = with_prices(without_pools(settings.policy, without_pool), prices)
    inputs = from_files(files, policy, account) if files else from_cluster(kubeconfig, context, settings, policy, moment, account=account)
    inputs = inputs if priorities is None else with_priorities(inputs, priorities)
    for note in input_hints(inputs.cluster, files):
        click.echo(f"note: {note}", err=True)
    cluster = with_pods(inputs.cluster, add_pods, now=moment)
    began = time.perf_counter()
    computed, solved = Planner(inputs.policy).plan_and_proof(cluster, inputs.state, moment)
    seconds = time.perf_counter() - began
    if inputs.unordered is not None:
        for note in describe_priority_cost(computed, Planner(inputs.unordered).plan(cluster, inputs.state, moment)):
            click.echo(f"note: {note}", err=True)
    if proof is not None:
        write_proof(proof, solved)
    if as_json:
        click.echo(plan_json(computed, seconds))
    else:
        print_plan(computed, cluster, seconds)


class PlanInputs(NamedTuple):
    """Input of a plan. ``unordered`` is the policy without the pool priorities of a ConfigMap; None if no ConfigMap has priorities."""

    cluster: "Cluster"
    policy: "Policy"
    state: "State"
    unordered: "Policy | None" = None


def account_of(settings: "RunSettings") -> "Account":
    """Read the account whose pools the settings use."""
    from gpuscaler.cli.account import read_account
    from gpuscaler.serving.cache_folder import cache_of

    return read_account(settings, cache=cache_of(os.environ))


def from_files(files: tuple[str, ...], policy: "Policy", account: "Account | None") -> PlanInputs:
    """Read the input from files; they contain no memory of a controller.

    The pools of nodes are taken from ``account`` where it lists their machines. Files may be of another cluster, so labels and types decide
    for the other nodes.
    """
    from gpuscaler.cli.account import with_bought_offerings
    from gpuscaler.lifecycle.steering.windows import as_closed
    from gpuscaler.planning.capacity.storage_labels import with_storage_places
    from gpuscaler.planning.state import State

    cluster = as_closed(load_cluster(files, max_grace=policy.max_grace))
    cluster = cluster if account is None else with_bought_offerings(cluster, account.inventory)
    return PlanInputs(cluster, with_storage_places(policy, cluster), State())


def from_cluster(
    kubeconfig: Path | None, context: str, settings: "RunSettings", policy: "Policy", now: float, *, account: "Account | None"
) -> PlanInputs:
    """Read the input from an API server, including the ledger of a controller that runs on the cluster.

    Nodes whose machines ``account`` does not list belong to no pool.
    """
    import asyncio

    from msgspec.structs import replace

    from gpuscaler.cli.account import with_bought_offerings
    from gpuscaler.cli.looking import read_cluster
    from gpuscaler.lifecycle.memory import state_of
    from gpuscaler.lifecycle.observed.machine_index import MachineIndex
    from gpuscaler.lifecycle.registration.unshown_resources import without_broken_promises
    from gpuscaler.lifecycle.steering.windows import as_closed
    from gpuscaler.planning.capacity.storage_labels import with_storage_places
    from gpuscaler.planning.state import learned_templates

    access = resolve_access(kubeconfig, context)
    with report_api_errors(access):
        observed = asyncio.run(read_cluster(access, namespace_of(settings.namespace, access)))
    for note in observed.notes:
        click.echo(f"note: {note}", err=True)
    cluster, unlisted = as_closed(observed.cluster), frozenset[str]()
    if account is not None:
        cluster = with_bought_offerings(cluster, account.inventory)
        unlisted = MachineIndex.of(cluster, account.inventory).unlisted
    policy, unshown = without_broken_promises(
        learned_templates.corrected_policy(policy, observed.memory.learned), observed.memory.breakers, cluster, now, unlisted=unlisted
    )
    unordered = with_storage_places(policy, cluster)
    policy = observed.expander.policy(unordered)
    standing = (observed.expander.in_force.text,) if policy != unordered else ()
    for note in (*unshown, observed.expander.trouble, *standing, *observed.expander.in_force.remarks):
        if note:
            click.echo(f"note: {note}", err=True)
    state = replace(state_of(observed.memory, policy, now), unlisted=unlisted)
    return PlanInputs(cluster, policy, state, unordered if policy != unordered else None)


def with_priorities(inputs: PlanInputs, path: str) -> PlanInputs:
    """Apply the priorities of a file; a file that cannot be parsed ends the command with exit code 2."""
    from gpuscaler.cli.changing import priorities_in
    from gpuscaler.model.priorities.inverting import priority_warnings
    from gpuscaler.model.priorities.priorities import apply_priorities, parse_priorities
    from gpuscaler.settings import SettingsError

    try:
        priorities = parse_priorities(priorities_in(path), path)
    except (OSError, UnicodeDecodeError, SettingsError) as error:
        click.echo(str(error) if isinstance(error, SettingsError) else f"{path}: cannot be read: {error}", err=True)
        sys.exit(2)
    unordered = inputs.unordered or inputs.policy
    policy, problem = apply_priorities(unordered, priorities)
    for note in (problem,) if problem else priority_warnings(policy, priorities):
        click.echo(f"note: {path}: {note}", err=True)
    return inputs._replace(policy=policy, unordered=unordered if policy != unordered else None)


def describe_priority_cost(ordered: "Plan", unordered: "Plan") -> "Iterator[str]":
    """Report the cost of the priorities: plan ``ordered`` with them compared with ``unordered``, if that serves as many pods."""
    extra = ordered.cost_per_hour - unordered.cost_per_hour
    if extra >= 0.005 and len(unordered.unplaced) <= len(ordered.unplaced):
        yield (
            f"the priorities of pools cost ${extra:.2f} per hour in this plan: "
            f"its machines for pending pods cost ${ordered.cost_per_hour:.2f} per hour with them, "
            f"and ${unordered.cost_per_hour:.2f} without"
        )


def parse_time(text: str) -> float:
    """Parse an RFC 3339 time to seconds since the epoch. A time without an offset is rejected, since it may mean any time zone."""
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        moment = None
    if moment is None or moment.tzinfo is None:
        raise click.BadParameter(f"saw {text!r}, expected a time with an offset such as 2026-11-21T12:00:00Z", param_hint="--now")
    return moment.timestamp()


def load_pools(path: str) -> "Policy":
    """Load the policy of a pools file; mistakes are printed and end the command with exit code 2."""
    settings = load_settings(path)
    if settings.has_account_pools:
        seen = f"saw cloud: {settings.cloud}, whose pools come from the account"
        click.echo(f"{path}: {seen}, expected a file with pools; name such a file", err=True)
        sys.exit(2)
    return settings.policy


def load_settings(path: str, *, remedy: str = "give objects to --cluster") -> "RunSettings":
    """Load a pools file or run file; mistakes are printed and end the command with exit code 2.

    ``remedy`` says what to do if the file holds Kubernetes objects instead.
    """
    from gpuscaler import settings

    try:
        return settings.load_settings(path, remedy=remedy)
    except settings.SettingsError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def load_cluster(files: tuple[str, ...], *, max_grace: float | None = None) -> "Cluster":
    """Load a cluster from several files; an unparsable object is skipped.

    A file that is unreadable or has no Kubernetes object, such as a pools file, ends the command with exit code 2.
    """
    from gpuscaler.model.aside import Skipped
    from gpuscaler.model.cluster import Cluster, Item
    from gpuscaler.model.decoding import InputError, Interner, read_items

    interner = Interner() if max_grace is None else Interner(max_grace=max_grace)
    items: list[Item] = []
    skipped: list[Skipped] = []
    try:
        for file in files:
            name = "standard input" if file == "-" else file
            of_file: list[Skipped] = []
            before = len(items)
            with click.open_file(file, "rb") as stream:
                for item in read_items(cast(BinaryIO, stream), interner, file=name):
                    if isinstance(item, Skipped):
                        of_file.append(item)
                    else:
                        items.append(item)
            # An empty List yields nothing. An object without a kind or a name is named by its place in the file.
            if of_file and len(items) == before and all(item.object.startswith((f"{name} ", "object ")) for item in of_file):
                raise InputError(name, "", f"no Kubernetes object ({_describe_skipped(of_file[0], name)})", EXPECTED_CLUSTER)
            skipped += of_file
    except InputError as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        click.echo(f"{error.filename}: saw {error.strerror}, expected a readable file with Kubernetes objects", err=True)
        sys.exit(2)
    return Cluster.of(items, skipped)


def _describe_skipped(item: "Skipped", file: str) -> str:
    """The place and the content of an object that could not be parsed, without what was expected there."""
    return f"{item.object.removeprefix(file).strip()}: {item.reason.partition(', expected ')[0]}"
