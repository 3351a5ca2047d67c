"""Asks what no object says, for ``gpuscaler doctor``: the values of metrics, certificates in use, and the time of the API server.

Everything is a GET or a TLS handshake, bounded in number and time. What is found becomes documents, which checks judge.
"""

import asyncio
import json
import ssl
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import replace
from email.utils import parsedate_to_datetime
from typing import Any
from urllib.parse import urlencode

from gpuscaler.doctor.checks.api_services import PROBED_DISCOVERY
from gpuscaler.doctor.checks.clocks import API_SERVER, PROBED_CLOCK
from gpuscaler.doctor.checks.metrics.addresses import parse_address
from gpuscaler.doctor.checks.metrics.certificates import PROBED_CERTIFICATE
from gpuscaler.doctor.checks.metrics.programs import METRICS_GROUPS, Serving, flag_of, space_of
from gpuscaler.doctor.checks.metrics.reading import AUTOSCALER, Targets, metrics_of, scale_target_of
from gpuscaler.doctor.checks.metrics.rules import Rules
from gpuscaler.doctor.checks.metrics.values import GROUPS, PROBED_METRIC
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Unreachable
from gpuscaler.kube.transport import Request
from gpuscaler.metrics.chain.looking import format_selector, metric_path, quoted_path, scale_selector

#: Metrics that are asked for at most, and at once; APIs of metrics and certificates at most.
_METRICS, _AT_ONCE, _SERVERS = 200, 8, 12
#: Series whose labels are read.
_SERIES = 20
#: Seconds for one answer, and for all of one kind.
_ANSWER, _TOTAL = 5.0, 8.0

Json = dict[str, Any]


async def with_probes(client: Client, evidence: Evidence, *, inside: bool, wall: Callable[[], float] = time.time) -> Evidence:
    """``evidence`` with what the cluster answers.

    ``inside`` is whether this runs in a pod of the cluster: only there, an address of a Service leads to it.
    """
    clock = await _clock(client, wall)
    found = await asyncio.gather(_discovery(client, evidence), _certificates(evidence, inside=inside), _metrics(client, evidence))
    await _add_series(client, evidence, found[2])
    documents: dict[str, tuple[Document, ...]] = {}
    for probe in (clock, *(probe for probes in found for probe in probes)):
        documents[probe["kind"]] = (*documents.get(probe["kind"], ()), Document(probe))
    return replace(evidence, documents={**evidence.documents, **documents})


async def _clock(client: Client, wall: Callable[[], float]) -> Json:
    probe: Json = {"kind": PROBED_CLOCK, "metadata": {"name": API_SERVER}}
    before = wall()
    try:
        async with client.transport.exchange(Request("GET", "/version", timeout=_ANSWER)) as answer:
            after, text = wall(), answer.headers.get("date", "")
    except Unreachable as error:
        return {**probe, "error": str(error)}
    try:
        # Date is cut to whole seconds: half a second is added.
        theirs = parsedate_to_datetime(text).timestamp() + 0.5
    except (ValueError, TypeError):
        return {**probe, "error": "its answer has no date"}
    return {**probe, "seconds": theirs - (before + after) / 2, "uncertainty": abs(after - before) / 2 + 0.5, "at": after}


def _services(evidence: Evidence) -> list[Document]:
    """The APIServices of metrics that lead to a program."""
    api_services = evidence.of("APIService")
    return [item for item in api_services if item.text("spec", "group") in METRICS_GROUPS and item.has("spec", "service")][:_SERVERS]


async def _discovery(client: Client, evidence: Evidence) -> list[Json]:
    async def ask(api_service: Document) -> Json:
        probe: Json = {"kind": PROBED_DISCOVERY, "metadata": {"name": api_service.name}}
        status, message, _ = await _get(client, f"/apis/{api_service.text('spec', 'group')}/{api_service.text('spec', 'version')}", {})
        return {**probe, "status": status, "message": message}

    return await _all(ask, _services(evidence), late=lambda _: None)


async def _certificates(evidence: Evidence, *, inside: bool) -> list[Json]:
    serving = Serving(evidence)

    def failed(api_service: Document, reason: str) -> Json:
        return {"kind": PROBED_CERTIFICATE, "metadata": {"name": api_service.name}, "error": reason}

    async def dial(api_service: Document) -> Json:
        service = serving.service_of(api_service)
        if service is None:
            # Without the right to read Services, that is the reason.
            return failed(api_service, "" if "Service" in evidence.unread else "the Service that it names does not exist")
        address, port = _address_of(service, api_service, evidence)
        if not address:
            unread = evidence.unread.get("Endpoints")
            endpoints = "name no ready address for this port" if unread is None else f"could not be read: {unread}"
            return failed(api_service, f"{service.title} has no clusterIP, and its Endpoints {endpoints}")
        if not inside:
            return failed(api_service, "the address of a Service is reached only from inside the cluster; run gpuscaler doctor in a pod")
        host = f"{service.name}.{service.namespace}.svc"
        try:
            pem = await asyncio.wait_for(_served_certificate(address, port, host), _ANSWER)
        except (OSError, ssl.SSLError, TimeoutError, ValueError) as error:
            return failed(api_service, f"no TLS connection to {address}:{port} ({type(error).__name__})")
        return {"kind": PROBED_CERTIFICATE, "metadata": {"name": api_service.name}, "address": f"{address}:{port}", "pem": pem}

    return await _all(dial, _services(evidence), late=lambda api_service: failed(api_service, f"no answer within {_TOTAL:g} s"))


def _address_of(service: Document, api_service: Document, evidence: Evidence) -> tuple[str, int]:
    """The address and port at which the API server reaches the program: the Service's own, else one of its Endpoints; empty if none."""
    number = api_service.value("spec", "service", "port")
    port = number if isinstance(number, int) else 443
    address = service.text("spec", "clusterIP")
    if address not in ("", "None"):
        return address, port
    names = [item.text("name") for item in service.parts("spec", "ports") if item.value("port") == port]
    endpoints = evidence.find("Endpoints", service.namespace, service.name)
    for subset in endpoints.parts("subsets") if endpoints is not None else ():
        for address in (item.text("ip") for item in subset.parts("addresses")):
            for item in subset.parts("ports"):
                if address and item.text("name") in names and isinstance(target := item.value("port"), int):
                    return address, target
    return "", port


async def _served_certificate(address: str, port: int, host: str) -> str:
    """The certificate that a server shows, as PEM. It is looked at, and nothing is sent: so it is not verified."""
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    _, writer = await asyncio.open_connection(address, port, ssl=context, server_hostname=host)
    try:
        der = writer.get_extra_info("ssl_object").getpeercert(binary_form=True)
    finally:
        writer.close()
    return ssl.DER_cert_to_PEM_cert(der) if der else ""


async def _metrics(client: Client, evidence: Evidence) -> list[Json]:
    """The answers for the metrics of all autoscalers; the same request is sent once."""
    targets = Targets(evidence)
    versions = _versions(evidence)
    answers: dict[tuple[str, str], asyncio.Task[tuple[int, str, int]]] = {}
    asked = [
        (autoscaler, metric)
        for autoscaler in evidence.of(AUTOSCALER)
        for metric in metrics_of(autoscaler)
        if metric.type in ("Pods", "Object", "External") and GROUPS[metric.type] in versions
    ]

    def probe(item: tuple[Document, Any], **more: Any) -> Json:
        autoscaler, metric = item
        return {
            "kind": PROBED_METRIC,
            "metadata": {"name": autoscaler.name, "namespace": autoscaler.namespace},
            "field": metric.field,
            **more,
        }

    async def ask(item: tuple[Document, Any]) -> Json:
        autoscaler, metric = item
        group = GROUPS[metric.type]
        try:
            selector = await _selector(client, autoscaler, targets) if metric.type == "Pods" else ""
            path, query = metric_path(metric.type, autoscaler.namespace, metric.source.data, metric.name, selector)
        except (ApiError, Unreachable, ValueError, TypeError, AttributeError) as error:
            return probe(item, status=0, message=f"it cannot be asked for: {error}")
        full = f"/apis/{group}/{versions[group]}{path}"
        key = full, urlencode(query)
        if key not in answers:
            answers[key] = asyncio.create_task(_get(client, full, query), name=f"ask for {metric.name}")
        status, message, items = await asyncio.shield(answers[key])
        return probe(item, status=status, message=message, items=items, path="?".join(filter(None, key)))

    late = f"no answer within {_TOTAL:g} s"
    try:
        found = await _all(ask, asked[:_METRICS], late=lambda item: probe(item, status=0, message=late))
    finally:
        for task in answers.values():
            task.cancel()
        await asyncio.gather(*answers.values(), return_exceptions=True)
    return [*found, *(probe(item, status=0, message=f"only the first {_METRICS} are asked for") for item in asked[_METRICS:])]


async def _add_series(client: Client, evidence: Evidence, probes: list[Json]) -> None:
    """Add to the probes of metrics without values what Prometheus has for their rules, through the API server's proxy."""
    serving = Serving(evidence)
    rules = Rules(serving, evidence)
    names = {
        (autoscaler.namespace, autoscaler.name, metric.field): metric.name
        for autoscaler in evidence.of(AUTOSCALER)
        for metric in metrics_of(autoscaler)
    }
    asked: dict[tuple[str, str], list[Json]] = {}
    for probe in probes:
        if probe["status"] == 404 or (probe["status"] == 200 and not probe["items"]):
            needs = rules.needs_of(names[probe["metadata"]["namespace"], probe["metadata"]["name"], probe["field"]])
            url = flag_of(needs.program.words, "prometheus-url") if needs is not None else ""
            address = parse_address(url or "", space_of(needs.program.workload)) if needs is not None else None
            if needs is not None and needs.series and address is not None:
                target = f"{'https:' if address.scheme == 'https' else ''}{address.name}:{address.port}"
                rest = filter(None, address.rest.split("/"))
                try:
                    path = quoted_path(
                        "api", "v1", "namespaces", address.namespace, "services", target, "proxy", *rest, "api", "v1", "series"
                    )
                except ValueError:
                    continue
                asked.setdefault((path, needs.series), []).append(probe)

    async def ask(item: tuple[str, str]) -> Json | None:
        path, series = item
        answer = await _series(client, path, {"match[]": series, "limit": str(_SERIES)})
        for probe in asked[item] if answer is not None else ():
            probe["series"] = answer
        return None

    await _all(ask, [*asked][:_SERVERS], late=lambda _: None)


async def _series(client: Client, path: str, query: Mapping[str, str]) -> Json | None:
    """How many series Prometheus has, and their labels; None if it cannot be asked."""
    try:
        async with client.exchange(Request("GET", path, query, {"accept": "application/json"}, timeout=_ANSWER)) as answer:
            data = json.loads(b"".join([piece async for piece in answer.pieces]))["data"]
        return {"count": len(data), "labels": sorted({str(label) for series in data[:_SERIES] for label in series})}
    except (ApiError, Unreachable, ValueError, KeyError, TypeError):
        return None


def _versions(evidence: Evidence) -> Mapping[str, str]:
    """The version in which each API of metrics is asked: the newest that the cluster has."""
    found: dict[str, str] = {}
    for api_service in _services(evidence):
        group, version = api_service.text("spec", "group"), api_service.text("spec", "version")
        found[group] = max(found.get(group, ""), version)
    return found


async def _selector(client: Client, autoscaler: Document, targets: Targets) -> str:
    workload = targets.workload(scale_target_of(autoscaler))
    if workload is None:
        return await scale_selector(client, autoscaler.namespace, autoscaler.part("spec", "scaleTargetRef").data)
    selector = workload.part("spec", "selector").data
    # That of a ReplicationController is the labels themselves.
    return format_selector(selector if workload.kind != "ReplicationController" else {"matchLabels": selector})


async def _get(client: Client, path: str, query: Mapping[str, str]) -> tuple[int, str, int]:
    """Status (0 without an answer), message, and the number of items. Nothing is repeated."""
    try:
        async with client.exchange(Request("GET", path, query, {"accept": "application/json"}, timeout=_ANSWER)) as answer:
            body = b"".join([piece async for piece in answer.pieces])
            items = json.loads(body).get("items")
    except ApiError as error:
        return error.status, error.message, 0
    except Unreachable as error:
        return 0, str(error), 0
    except (ValueError, AttributeError):
        return 0, "its answer is not JSON of an API server", 0
    return answer.status, "", len(items) if isinstance(items, list) else 0


async def _all(ask: Callable[[Any], Awaitable[Json | None]], items: Iterable[Any], *, late: Callable[[Any], Json | None]) -> list[Json]:
    """The answers for all items, some at once; ``late`` makes those that did not come in time."""
    turn = asyncio.Semaphore(_AT_ONCE)

    async def in_turn(item: Any) -> Json | None:
        async with turn:
            return await ask(item)

    tasks = {asyncio.ensure_future(in_turn(item)): item for item in items}
    if tasks:
        _, pending = await asyncio.wait(tasks, timeout=_TOTAL)
        for task in pending:
            task.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
    results = ((late(item) if task.cancelled() else task.result()) for task, item in tasks.items())
    return [result for result in results if result is not None]
