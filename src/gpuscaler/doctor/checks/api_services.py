"""APIServices that lead nowhere, or to another program than the one that is needed."""

import json
import re
import shlex
from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from gpuscaler.doctor.checks.checking import WORKLOADS, Check, in_part
from gpuscaler.doctor.checks.metrics.programs import CUSTOM, EXTERNAL, METRICS_GROUPS, RESOURCE, Serving, space_of
from gpuscaler.doctor.checks.trusting import may_help, verify
from gpuscaler.doctor.commands import kubectl_delete, kubectl_patch
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked

_TIMEOUT = re.compile(r"deadline exceeded|time.?out|timed out|no route to host", re.IGNORECASE)

_CERTIFICATE = re.compile(r"x509|certificate|tls:", re.IGNORECASE)
#: Answers of metrics APIs through the API server: ``{metadata: {name}, status, message}``, with the name of the APIService.
PROBED_DISCOVERY: Final = "probe/Discovery"
#: Reasons that the Service itself confirms or refutes.
_ABOUT_SERVICES = ("ServiceNotFound", "ServicePortError")


class _Cause(NamedTuple):
    """Why an APIService leads nowhere."""

    field: str
    seen: str
    expected: str
    fix: Fix


def find_unavailable(evidence: Evidence) -> Iterable[Finding | Unchecked]:
    """D42: an APIService that the API server cannot reach, or whose Service, port or pods do not exist."""
    serving = Serving(evidence)
    answers = {probe.name: probe for probe in evidence.of(PROBED_DISCOVERY)}
    for api_service in evidence.of("APIService"):
        if not api_service.text("spec", "service", "name"):
            continue  # The API server serves it itself.
        condition = next((item for item in api_service.parts("status", "conditions") if item.text("type") == "Available"), Document({}))
        if condition.text("status") == "True":
            if (answer := answers.get(api_service.name)) is not None and (answer.number("status") or 0) >= 500:
                yield _unavailable(api_service, _refused(api_service, answer))
            continue
        cause = None if "Service" in evidence.unread else _cause(api_service, evidence, serving)
        # The condition is older than the Service if that is there by now.
        is_old = "Service" not in evidence.unread and condition.text("reason") in _ABOUT_SERVICES
        if cause is None and condition.text("status") == "False" and not is_old:
            cause = _reported(api_service, condition)
        if cause is not None:
            yield _unavailable(api_service, cause)
        else:
            yield from in_part("D42", f"what {api_service.title} leads to", evidence, "Service", "Endpoints")


def _unavailable(api_service: Document, cause: _Cause) -> Finding:
    group = api_service.text("spec", "group")
    severity, lost = (CRITICAL, "HorizontalPodAutoscalers read no such metrics, and ") if group in METRICS_GROUPS else (WARNING, "")
    effect = f"{lost}no namespace can be deleted, since what is in it cannot be listed"
    return Finding("D42", severity, api_service.title, cause.field, cause.seen, cause.expected, effect, cause.fix, api_service.place)


def _cause(api_service: Document, evidence: Evidence, serving: Serving) -> _Cause | None:
    namespace, name = api_service.text("spec", "service", "namespace"), api_service.text("spec", "service", "name")
    service = serving.service(namespace, name)
    if service is None:
        return _without_service(api_service, evidence, serving)
    if service.text("spec", "type") == "ExternalName":
        return None
    number = api_service.number("spec", "service", "port")
    port = 443 if number is None else number
    ports = [item.number("port") for item in service.parts("spec", "ports")]
    if port not in ports:
        patches = (kubectl_patch(api_service, {"spec": {"service": {"port": ports[0]}}}),) if len(ports) == 1 else ()
        advice = "" if patches else f"name a port of Service {namespace}/{name} in spec.service.port"
        offered = ", ".join(f"{number:g}" for number in ports if number is not None) or "none"
        return _Cause("spec.service.port", f"{port:g}", f"a port of Service {namespace}/{name} ({offered})", Fix(patches, advice))
    return _without_pods(api_service, service, evidence, serving)


def _without_service(api_service: Document, evidence: Evidence, serving: Serving) -> _Cause:
    """The Service was moved, replaced by that of another program, or removed."""
    group, name = api_service.text("spec", "group"), api_service.text("spec", "service", "name")
    seen = f"{api_service.text('spec', 'service', 'namespace')}/{name}, which does not exist"
    others = [
        *serving.services_named(name),
        *(service for program in serving.serving(group) for service in serving.before(program.workload)),
    ]
    others = [service for index, service in enumerate(others) if service not in others[:index]]
    if len(others) == 1:
        other = others[0]
        program = serving.program_of(other)
        # The program behind it gets the requests of all autoscalers, with the API server's word for who asks.
        if program is None or group not in program.groups or not may_help(evidence, space_of(other)):
            advice = f"{verify(f'Service {other.name}', space_of(other))}; then name it in spec.service"
            return _Cause("spec.service", seen, "the Service of the program that serves these metrics", Fix(advice=advice))
        numbers = [item.number("port") for item in other.parts("spec", "ports")]
        port = {"port": numbers[0]} if len(numbers) == 1 else {}
        patch = {"spec": {"service": {"namespace": space_of(other), "name": other.name, **port}}}
        return _Cause("spec.service", seen, f"{space_of(other)}/{other.name}", Fix((kubectl_patch(api_service, patch),)))
    if others:
        candidates = ", ".join(service.key for service in others)
        return _Cause(
            "spec.service", seen, f"one of {candidates}", Fix(advice="name the Service of the program that shall serve these metrics")
        )
    if group != RESOURCE and not _is_used(group, evidence):
        advice = "install its program again instead if these metrics are needed"
        return _Cause("spec.service", seen, "no APIService of a program that was removed", Fix((kubectl_delete(api_service),), advice))
    return _Cause(
        "spec.service",
        seen,
        "a Service",
        Fix(advice="install the program that serves these metrics again, or correct the name of its Service"),
    )


def _without_pods(api_service: Document, service: Document, evidence: Evidence, serving: Serving) -> _Cause | None:
    selector = service.pairs("spec", "selector")
    endpoints = evidence.find("Endpoints", service.namespace, service.name)
    readable = "Pod" not in evidence.unread and "Deployment" not in evidence.unread
    if selector and readable and not serving.behind(service):
        group = api_service.text("spec", "group")
        programs = [program for program in serving.serving(group) if space_of(program.workload) == space_of(service)]
        labels = programs[0].workload.pairs("spec", "selector", "matchLabels") if len(programs) == 1 else {}
        seen, expected = json.dumps(selector), "the labels of the pods that serve these metrics"
        if labels and may_help(evidence, space_of(service)):
            gone = dict.fromkeys(key for key in selector if key not in labels)
            fix = Fix((kubectl_patch(service, {"spec": {"selector": {**gone, **labels}}}),))
        else:
            fix = Fix(
                advice=f"correct the selector of Service {service.key}, install the program again, or delete the APIService if it is gone"
            )
        return _Cause(f"Service {service.key}: spec.selector", f"{seen}, which selects no pods", expected, fix)
    if endpoints is not None and not any(subset.parts("addresses") for subset in endpoints.parts("subsets")):
        names = ", ".join(workload.title for workload in serving.behind(service)) or "the pods behind it"
        describe = f"kubectl describe pods --namespace {shlex.quote(space_of(service))}"
        fix = Fix(advice=f"see why no pod is ready: {describe}; they belong to {names}")
        return _Cause("spec.service", f"{service.key}, which has no ready pods", "a Service with at least one ready pod", fix)
    return None


def _reported(api_service: Document, condition: Document) -> _Cause:
    """What the API server says, where nothing that can be read explains it."""
    where = _service_of(api_service)
    message = " ".join(condition.text("message").split())
    if "404" in message:
        group_version = f"{api_service.text('spec', 'group')}/{api_service.text('spec', 'version')}"
        advice = (
            f"the program behind Service {where} answers, but does not serve {group_version}: delete the APIService, or update the program"
        )
    elif _TIMEOUT.search(message):
        advice = (
            f"allow the control plane to reach the pods of Service {where} at their own port, not at the Service's (security groups, "
            "firewall rules, NetworkPolicy), or run them in the host's network"
        )
    else:
        advice = f"repair the program behind Service {where}, or delete the APIService if it is gone for good"
    return _Cause("status.conditions[Available]", f"False ({condition.text('reason')}: {message})", "True", Fix(advice=advice))


def _refused(api_service: Document, answer: Document) -> _Cause:
    """What a request shows and the condition does not, which is checked without verifying the certificate."""
    seen = f"available, but requests fail: {' '.join(answer.text('message').split())}"
    advice = f"repair the program behind Service {_service_of(api_service)}"
    if _CERTIFICATE.search(seen):
        advice = "issue the program's certificate for the name NAME.NAMESPACE.svc of its Service, and put its authority in spec.caBundle"
    return _Cause("status.conditions[Available]", seen, "an API that answers", Fix(advice=advice))


def _is_used(group: str, evidence: Evidence) -> bool:
    """Whether an autoscaler needs metrics of ``group``, or may need them."""
    types = ("External",) if group == EXTERNAL else ("Pods", "Object")
    if "HorizontalPodAutoscaler" in evidence.unread or (group == EXTERNAL and evidence.of("ScaledObject")):
        return True
    return any(
        metric.text("type") in types
        for autoscaler in evidence.of("HorizontalPodAutoscaler")
        for metric in autoscaler.parts("spec", "metrics")
    )


def find_contested(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D43: two programs that claim the same API of metrics, so that one of them is never asked."""
    serving = Serving(evidence)
    yield from in_part("D43", "which programs serve metrics", evidence, "Service", "Deployment")
    by_group: dict[str, list[Document]] = {}
    for api_service in evidence.of("APIService"):
        if api_service.text("spec", "group") in METRICS_GROUPS and api_service.text("spec", "service", "name"):
            by_group.setdefault(api_service.text("spec", "group"), []).append(api_service)
    for group, api_services in by_group.items():
        services = {_service_of(api_service): api_service for api_service in api_services}
        if len(services) > 1:
            yield _divided(group, api_services)
        elif (finding := _unserved(group, api_services[0], evidence, serving)) is not None:
            yield finding


def _service_of(api_service: Document) -> str:
    return f"{api_service.text('spec', 'service', 'namespace')}/{api_service.text('spec', 'service', 'name')}"


def _divided(group: str, api_services: list[Document]) -> Finding:
    last = api_services[-1]
    claims = sorted({f"{_service_of(item)} ({item.text('spec', 'version')})" for item in api_services})
    if len({item.name for item in api_services}) == 1:
        effect = "the last one that is applied takes the metrics of the other away"
    else:
        effect = "autoscalers ask only the Service of the version that the API server prefers, and never see the metrics of the other"
    advice = "let one program serve the group: convert the rules of the other to it, and remove the other with its APIService"
    return Finding(
        "D43", CRITICAL, last.title, "spec.service", ", ".join(claims), f"one Service for {group}", effect, Fix(advice=advice), last.place
    )


def _unserved(group: str, api_service: Document, evidence: Evidence, serving: Serving) -> Finding | None:
    """Programs that serve the group and that are not asked, though autoscalers count on them."""
    service = serving.service_of(api_service)
    program = serving.program_of(service) if service is not None else None
    if service is None or program is None:
        return None
    others = [other for other in serving.serving(group) if other.name != program.name]
    keda = any(other.name == "KEDA" for other in others) and bool(evidence.of("ScaledObject"))
    # KEDA's own autoscalers carry the label; the metrics of all others come from another program.
    foreign = program.name == "KEDA" and any(
        metric.text("type") == "External" and "scaledobject.keda.sh/name" not in autoscaler.labels
        for autoscaler in evidence.of("HorizontalPodAutoscaler")
        for metric in autoscaler.parts("spec", "metrics")
    )
    used = keda or foreign or group == CUSTOM
    # An adapter has external rules only if someone wrote them, and KEDA claims the group for itself.
    meant = [other for other in others if {program.name, other.name} == {"KEDA", "prometheus-adapter"}]
    if not others or not (used or meant):
        return None
    left_out = ", ".join(f"{other.name} ({other.workload.title})" for other in (others if used else meant))
    scaling = "the autoscalers that use them do not scale" if used else "an autoscaler that is written for them will not scale"
    effect = f"the metrics of {left_out} cannot be read, so {scaling}"
    advice = "an API group has one server: move all its metrics to one of these programs, and remove the group from the other"
    return Finding(
        "D43",
        CRITICAL if used else WARNING,
        api_service.title,
        "spec.service",
        f"{service.key} ({program.name}), while {left_out} is installed for the same group",
        f"one program for {group}",
        effect,
        Fix(advice=advice),
        api_service.place,
    )


CHECKS = (
    Check("D42", "APIServices that are not available", ("APIService",), find_unavailable, reads=(*WORKLOADS, "Service", "Endpoints")),
    Check(
        "D43",
        "programs that claim the same API of metrics",
        ("APIService",),
        find_contested,
        reads=(*WORKLOADS, "ScaledObject"),
        on_files=True,
    ),
)
