"""Where metrics come from: the addresses of Prometheus, and flags that make metrics vanish or logs overflow."""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.checks.metrics.programs import Program, Serving, flag_of, space_of
from gpuscaler.doctor.checks.metrics.reading import SCALED_OBJECT
from gpuscaler.doctor.checks.trusting import may_help
from gpuscaler.doctor.commands import kubectl_patch
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix, Unchecked
from gpuscaler.model.durations import DurationError, parse_duration

_URL: Final = re.compile(r"^(https?)://([A-Za-z0-9.-]+)(?::(\d{1,5}))?((?:/[\w~-][\w.~-]*)*/?)$")
_SCRAPE: Final = re.compile(r"^[ \t]*scrape_interval:[ \t]*[\"']?(\w+)", re.MULTILINE)
#: From this verbosity on, the clients of Kubernetes log the bodies of requests.
_BODIES = 8


class Address(NamedTuple):
    """An address inside the cluster."""

    scheme: str
    name: str
    namespace: str
    port: int
    rest: str

    @property
    def service(self) -> str:
        return f"Service {self.namespace}/{self.name}"


def find_wrong_addresses(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D45: a Prometheus at a Service or port that does not exist."""
    yield from in_part("D45", "addresses of Prometheus in programs", evidence, "Deployment")
    yield from in_part("D45", "addresses of Prometheus in ScaledObjects", evidence, SCALED_OBJECT)
    serving = Serving(evidence)
    for program in serving.programs:
        url = flag_of(program.words, "prometheus-url") or ""
        own = space_of(program.workload)
        mistake = _mistake(url, own, serving, _Trust(evidence, own))
        if mistake is not None:
            seen, better = mistake
            commands = _flag_patches(program, url, better) if better else ()
            yield _finding(program.workload, "--prometheus-url", url=url, seen=seen, commands=commands)
    for scaled in evidence.of(SCALED_OBJECT):
        for index, trigger in enumerate(scaled.parts("spec", "triggers")):
            url = trigger.text("metadata", "serverAddress")
            # A name alone is looked up in KEDA's own namespace.
            trust = _Trust(evidence, space_of(scaled))
            mistake = _mistake(url, "", serving, trust) if trigger.text("type") == "prometheus" else None
            if mistake is not None:
                seen, better = mistake
                patch = [{"op": "replace", "path": f"/spec/triggers/{index}/metadata/serverAddress", "value": better}]
                commands = (kubectl_patch(scaled, patch, strategy="json"),) if better else ()
                yield _finding(scaled, f"spec.triggers[{index}].metadata.serverAddress", url=url, seen=seen, commands=commands)


def _finding(document: Document, field: str, *, url: str, seen: str, commands: tuple[str, ...]) -> Finding:
    effect = "there are no values from Prometheus, so that autoscalers keep the replicas that they have"
    advice = "" if commands else "name the Service of Prometheus and its port: kubectl get services --all-namespaces | grep prometheus"
    expected = "the address of a Prometheus that exists"
    return Finding("D45", CRITICAL, document.title, field, f"{url}: {seen}", expected, effect, Fix(commands, advice), document.place)


class _Trust(NamedTuple):
    """Whose word counts for an address in an object of ``namespace``."""

    evidence: Evidence
    namespace: str

    def covers(self, service: Document, address: Address) -> bool:
        """Whether requests may be sent to ``service`` instead of ``address``: they say what is asked, maybe with a password."""
        space = space_of(service)
        return may_help(self.evidence, space, within=self.namespace) or may_help(self.evidence, space, within=address.namespace)


def _mistake(url: str, own: str, serving: Serving, trust: _Trust) -> tuple[str, str] | None:
    """What is wrong with an address inside the cluster, and a better one if there is only one, and no tenant can have made it."""
    address = parse_address(url, own)
    if address is None:
        return None
    service = serving.service(address.namespace, address.name)
    if service is None:
        others = serving.services_named(address.name) or tuple(
            item
            for item in serving.services
            if "prometheus" in item.name and 9090 in _ports(item) and item.text("spec", "clusterIP") != "None"
        )
        if not others and not serving.has_all_services:
            return None  # It may be in a file that was not given.
        seen = f"{address.service} does not exist"
        return seen, _url_of(address, others[0]) if len(others) == 1 and trust.covers(others[0], address) else ""
    ports = _ports(service)
    if not ports or address.port in ports or service.text("spec", "type") == "ExternalName":
        return None
    offered = ", ".join(map(str, ports))
    return f"{address.service} has no port {address.port}, only {offered}", _url_of(address, service) if len(
        ports
    ) == 1 or 9090 in ports else ""


def _ports(service: Document) -> tuple[int, ...]:
    return tuple(number for item in service.parts("spec", "ports") if isinstance(number := item.value("port"), int))


def _url_of(address: Address, service: Document) -> str:
    ports = _ports(service)
    port = address.port if address.port in ports else 9090 if 9090 in ports or not ports else ports[0]
    return f"{address.scheme}://{service.name}.{space_of(service)}.svc:{port}{address.rest}"


def parse_address(url: str, own: str) -> Address | None:
    """The Service in ``url``: ``name.namespace.svc…``, or ``name`` in the namespace ``own``; None for other hosts."""
    match = _URL.match(url)
    if match is None:
        return None
    scheme, host, port, rest = match.groups()
    name, *more = host.rstrip(".").split(".")
    if not (more or own) or (more and more[1:2] != ["svc"]):
        return None
    return Address(scheme, name, more[0] if more else own, int(port) if port else 443 if scheme == "https" else 80, rest or "")


def _flag_patches(program: Program, old: str, new: str) -> tuple[str, ...]:
    """The command that replaces ``old`` in the words of a program's container."""
    template = template_of(program.workload) or Document({})
    for path, container in containers_of(template):
        place = "/".join(("", *TEMPLATES[program.workload.kind], *path.replace("[", ".").replace("]", "").split(".")))
        for name in ("command", "args"):
            for index, word in enumerate(container.value(name) or () if isinstance(container.value(name), list) else ()):
                if isinstance(word, str) and (word == old or word.endswith(f"={old}")):
                    patch = [{"op": "replace", "path": f"{place}/{name}/{index}", "value": word.removesuffix(old) + new}]
                    return (kubectl_patch(program.workload, patch, strategy="json"),)
    return ()


def find_odd_flags(evidence: Evidence) -> Iterator[Finding]:
    """D45: metrics that are forgotten between two scrapes; D46: logs with the bodies of all requests."""
    intervals = [
        seconds
        for config in evidence.of("ConfigMap")
        if "prometheus" in config.name
        for key, text in config.pairs("data").items()
        if key.startswith("prometheus.y") and (match := _SCRAPE.search(text)) and (seconds := _seconds(match.group(1)))
    ]
    for program in Serving(evidence).programs:
        verbosity = flag_of(program.words, "v") or ""
        if verbosity.isdecimal() and int(verbosity[:9]) >= _BODIES:
            yield Finding(
                "D46",
                WARNING,
                program.workload.title,
                "--v",
                verbosity,
                f"at most {_BODIES - 1}",
                "the program logs the bodies of its requests, with the data of other programs, and fills the disk of its node",
                Fix(_flag_patches(program, verbosity, "2")),
                program.workload.place,
            )
        relist, age = (_seconds(flag_of(program.words, f"metrics-{name}") or "") for name in ("relist-interval", "max-age"))
        remembered = age or relist
        if program.name == "prometheus-adapter" and remembered and intervals and remembered < min(intervals):
            scrape = f"{min(intervals):g}s"
            yield Finding(
                "D45",
                WARNING,
                program.workload.title,
                "--metrics-max-age" if age else "--metrics-relist-interval",
                f"{remembered:g}s, and Prometheus scrapes every {scrape}",
                f"at least {scrape}",
                "metrics vanish between two scrapes, and autoscalers report them as unknown from time to time",
                Fix(_flag_patches(program, flag_of(program.words, f"metrics-{'max-age' if age else 'relist-interval'}") or "", scrape)),
                program.workload.place,
            )


def _seconds(text: str) -> float:
    try:
        return parse_duration(text)
    except DurationError:
        return 0.0


CHECKS = (
    Check("D45", "addresses of Prometheus", ("Service",), find_wrong_addresses),
    Check("D46", "flags of metrics programs", ("Deployment",), find_odd_flags, on_files=True),
)
