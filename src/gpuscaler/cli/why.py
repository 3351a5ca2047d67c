"""``gpuscaler why``: explains why a pod is pending, why a node exists, stays or is removed, or why an autoscaler does not scale."""

import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import click

from gpuscaler.cli.leading import (
    NOT_INSTALLED,
    PATIENCE,
    Leader,
    NotInstalledError,
    OutOfReachError,
    leader_options,
    namespace_option,
    query_leader,
    run_with_transport,
)
from gpuscaler.cli.reaching import access_options, resolve_access
from gpuscaler.cli.status import format_event, print_line

if TYPE_CHECKING:
    from gpuscaler.control.records.status.why import Explanation
    from gpuscaler.kube.http import HttpTransport
    from gpuscaler.kube.transport import Transport


@click.command()
@click.argument("kind", type=click.Choice(["pod", "node", "hpa"]))
@click.argument("name", metavar="NAME")
@access_options
@namespace_option
@leader_options
@click.option("--json", "as_json", is_flag=True, help="Print the answer as JSON.")
def why(*, kind: str, name: str, kubeconfig: Path | None, context: str, namespace: str, leader: Leader, as_json: bool) -> None:
    """Explain the pod or HorizontalPodAutoscaler NAMESPACE/NAME (or NAME, in the namespace "default") or the node NAME.

    The answer comes from the leading controller; if it cannot be reached, from its Events. For an autoscaler, each link in the chain of its
    metrics is checked, from the GPUs to the autoscaler, and the broken one is named.
    """
    subject = name if kind == "node" or "/" in name else f"default/{name}"
    if kind != "node" and (subject.count("/") != 1 or not all(subject.split("/"))):
        raise click.BadParameter(f"saw {name!r}, expected NAMESPACE/NAME, or NAME in the namespace default", param_hint="NAME")
    access = resolve_access(kubeconfig, context)
    if kind == "hpa":
        sys.exit(run_with_transport(access, lambda transport: print_chain(transport, subject, as_json=as_json)))

    async def query_cluster(transport: "HttpTransport") -> int:
        import msgspec

        from gpuscaler.control.records.status.why import Explanation
        from gpuscaler.kube.errors import Forbidden

        missing = 0
        try:
            status, body = await query_leader(access, transport, leader, namespace=namespace, path=f"/why/{kind}/{quote_subject(subject)}")
            if status not in (200, 404):
                raise OutOfReachError(f"the leader answered {status}: {body[:200].decode(errors='replace').strip()}")
            answer = msgspec.json.decode(body, type=Explanation)
        except (OutOfReachError, NotInstalledError, Forbidden, msgspec.MsgspecError) as error:
            click.echo(f"The leader cannot be queried ({error}); from Events:", err=True)
            missing = NOT_INSTALLED if isinstance(error, NotInstalledError) else 0
            answer = await from_events(transport, kind, subject)
        if as_json:
            click.echo(msgspec.json.format(msgspec.json.encode(answer), indent=2).decode())
        else:
            print_answer(answer)
        return missing or (0 if answer.known else 2)

    sys.exit(run_with_transport(access, query_cluster))


async def print_chain(transport: "HttpTransport", subject: str, *, as_json: bool) -> int:
    """Print the chain of each metric of an autoscaler, link by link; return exit status 1 if one is broken."""
    import msgspec

    from gpuscaler.kube.client import Client
    from gpuscaler.kube.errors import NotFound
    from gpuscaler.kube.portforward import PodPort, get_page
    from gpuscaler.metrics.chain.judging import first_broken, judge
    from gpuscaler.metrics.chain.looking import collect_facts

    async def page(target: PodPort, path: str) -> tuple[int, bytes]:
        return await get_page(transport, target, path, within=PATIENCE)

    namespace, _, name = subject.partition("/")
    try:
        autoscaler_metrics = await collect_facts(Client(transport), namespace, name, pages=page)
    except NotFound as error:
        click.echo(f"hpa {subject}: saw {error}, expected a HorizontalPodAutoscaler and what it scales; correct the name", err=True)
        return 2
    judged = [(facts, judge(facts)) for facts in autoscaler_metrics]
    if as_json:
        document = [{"metric": facts.metric, "kind": facts.kind, "values": facts.values, "links": links} for facts, links in judged]
        click.echo(msgspec.json.format(msgspec.json.encode(document), indent=2).decode())
    else:
        print_line(f"hpa {subject}:")
        if not judged:
            print_line("  it uses only metrics of metrics-server")
        for facts, links in judged:
            print_line(f"  {facts.metric} ({facts.kind}):")
            for link in links:
                print_line(f"    {link.verdict:<8}{link.name:<9} {link.text}")
            worst = first_broken(links)
            print_line(f"    the chain is broken at the {worst.name}" if worst else "    no link is broken")
    return 1 if any(first_broken(links) for _, links in judged) else 0


def quote_subject(subject: str) -> str:
    from urllib.parse import quote

    return quote(subject, safe="/")


def print_answer(answer: "Explanation") -> None:
    print_line(f"{answer.subject}:")
    for entry in answer.now:
        print_line(f"  {entry}")
    if answer.happened:
        print_line("\nEvents:")
    for status_entry in answer.happened:
        print_line(f"  {format_event(status_entry, answer.at)}")


async def from_events(transport: "Transport", kind: str, subject: str) -> "Explanation":
    """Answer from the Events of gpuscaler and of the scheduler about an object, oldest first."""
    import msgspec

    from gpuscaler.control.records.status.status import StatusEntry
    from gpuscaler.control.records.status.why import Explanation
    from gpuscaler.kube.client import Client
    from gpuscaler.kube.errors import NotFound
    from gpuscaler.kube.resources import CORE_EVENTS, NODES, PODS

    client = Client(transport)
    space, _, name = subject.rpartition("/")
    try:
        await client.get(PODS if kind == "pod" else NODES, name, namespace=space)
        exists = True
    except NotFound:
        exists = False

    class WireEvent(msgspec.Struct, rename="camel"):
        reason: str | None = None
        message: str | None = None
        reporting_component: str | None = None
        event_time: str | None = None
        last_timestamp: str | None = None

    query = {"fieldSelector": f"involvedObject.kind={kind.capitalize()},involvedObject.name={name}"}
    entries = []
    # An Event of an object without a namespace is in "default".
    for raw in await client.list_all(CORE_EVENTS, namespace=space or "default", query=query):
        event = msgspec.json.decode(raw, type=WireEvent)
        if event.reporting_component == "gpuscaler" or event.reason == "FailedScheduling":
            entries.append(StatusEntry(event.reason or "", event.message or "", parse_event_time(event.last_timestamp or event.event_time)))
    now = (() if exists else (f"there is no such {kind} now",)) if entries else ("there is no Event of gpuscaler about it",)
    return Explanation(f"{kind} {subject}", exists or bool(entries), now, tuple(sorted(entries, key=lambda entry: entry.at)), time.time())


def parse_event_time(text: str | None) -> float:
    """Parse the time of an Event to seconds since the epoch; 0 if it cannot be parsed."""
    from gpuscaler.model.wire import UnreadableError, parse_timestamp

    try:
        return parse_timestamp(text, "eventTime")
    except UnreadableError:
        return 0.0
