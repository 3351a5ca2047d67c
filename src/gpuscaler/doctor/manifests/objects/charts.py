"""Values of Helm charts: keys that the chart does not read any more, or reads elsewhere.

Helm ignores unknown keys, unless the chart has a schema, as gpuscaler's own does. Of other charts only keys that are known to be wrong are
findings, since charts get new ones with each release. Sources: the values.yaml of the charts cluster-autoscaler, karpenter and
prometheus-adapter, Karpenter's upgrade guides of v0.32 and v0.36, and github.com/aws/karpenter-provider-aws/issues/6960 (what 1.0 removed),
read on 2026-11-26.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from gpuscaler.doctor.checks.autoscalers.priorities import judge_priorities
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed, removed, renamed
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.similar import nearest

_UNREAD = Mistake("L18", CRITICAL, "the chart does not read it: the program runs without the setting")
_BROKEN = Mistake("L18", CRITICAL, "the program does not start, or reaches nothing")
_REFUSED = Mistake("L18", CRITICAL, "helm refuses the values")
_UNUSED = Mistake("L18", WARNING, "the setting has no effect")
_SECRET = Mistake("L14", CRITICAL, "everyone who may read the file or its history has the credential")
_EXCHANGE = "exchange the patterns of these numbers"
_PORT = re.compile(r"(https?://[^/:]+):(\d+)/?$")
#: Credentials among the values of Cluster Autoscaler's chart.
_CREDENTIALS = ("awsSecretAccessKey", "azureClientSecret")
_PLACEHOLDER = re.compile(r"\$.*|<.*>|\{\{.*|")
#: Keys of Karpenter's chart, where they are now, and the release that has put them there. Until 0.18 the names were at the top, from 0.19
#: to 0.32 below settings.aws.
_KARPENTER: tuple[tuple[Path, Path, str], ...] = (
    (("clusterName",), ("settings", "clusterName"), "0.33"),
    (("clusterEndpoint",), ("settings", "clusterEndpoint"), "0.33"),
    (("interruptionQueue",), ("settings", "interruptionQueue"), "0.33"),
    (("settings", "interruptionQueueName"), ("settings", "interruptionQueue"), "0.33"),
    *(
        (("settings", "aws", name), ("settings", name), "0.33")
        for name in ("clusterName", "clusterEndpoint", "isolatedVPC", "reservedENIs")
    ),
    (("settings", "aws", "vmMemoryOverheadPercent"), ("settings", "vmMemoryOverheadPercent"), "0.33"),
    (("settings", "aws", "interruptionQueueName"), ("settings", "interruptionQueue"), "0.33"),
    (("settings", "aws", "interruptionQueue"), ("settings", "interruptionQueue"), "0.33"),
    *(((*path, name), (), "1.0") for path in (("settings", "aws"), ("settings",)) for name in ("assumeRoleARN", "assumeRoleDuration")),
    (("settings", "aws", "defaultInstanceProfile"), (), "0.33"),
    (("aws", "defaultInstanceProfile"), (), "0.33"),
    (("settings", "featureGates", "driftEnabled"), (), "0.33"),
)

#: The keys of gpuscaler's own chart. Its schema refuses others.
_OWN = (
    "nameOverride",
    "fullnameOverride",
    "image",
    "imagePullSecrets",
    "commonLabels",
    "config",
    "controller",
    "exporter",
    "metrics",
    "networkPolicy",
    "serviceMonitor",
    "global",
)


def find_wrong_values(manifests: Manifests) -> Iterable[Finding]:
    """L18: values that charts do not read."""
    for manifest in manifests.items:
        if manifest.document.kind or manifest.document.api_version:
            continue
        yield from _autoscaler(manifest)
        yield from _karpenter(manifest)
        yield from _adapter(manifest)
        yield from _own(manifest)


def has_known_values(manifest: Manifest) -> bool:
    """Whether the object is the values of one of these charts."""
    document = manifest.document
    return _is_of_autoscaler(document) or _is_of_karpenter(document) or _is_of_adapter(manifest) or _is_own(document)


def _is_of_autoscaler(document: Document) -> bool:
    return document.has("autoDiscovery") or document.has("autoscalingGroups") or document.has("expanderPriorities")


def _is_of_karpenter(document: Document) -> bool:
    settings = document.has("settings") or (document.has("clusterName") and document.has("clusterEndpoint"))
    return settings and not document.has("autoDiscovery")


def _is_own(document: Document) -> bool:
    """Whether these are values of gpuscaler's own chart: a run file below ``config``, or its parts that are turned on or off."""
    parts = sum(isinstance(document.value(name, "enabled"), bool) for name in ("controller", "exporter", "metrics"))
    return document.text("config", "cloud") in {"aws", "azure", "simulated"} or parts > 1


def _is_of_adapter(manifest: Manifest) -> bool:
    document = manifest.document
    has_more = document.has("rules") or document.has("metricsRelistInterval") or "prometheus-adapter" in manifest.file.name
    return bool(document.text("prometheus", "url")) and has_more


def _autoscaler(manifest: Manifest) -> Iterator[Finding]:
    document = manifest.document
    if not _is_of_autoscaler(document):
        return
    discovery = document.part("autoDiscovery")
    if discovery.flag("enabled") and not discovery.text("clusterName") and not document.has("autoscalingGroups"):
        yield _UNREAD.at(
            manifest,
            ("autoDiscovery", "enabled"),
            seen="enabled, and no clusterName",
            expected="autoDiscovery.clusterName, which turns it on",
            advice="write autoDiscovery.clusterName with the name of the cluster",
        )
    if document.has("rbac", "serviceAccountAnnotations"):
        value = document.value("rbac", "serviceAccountAnnotations")
        new = changed(removed(manifest.data, ("rbac", "serviceAccountAnnotations")), ("rbac", "serviceAccount", "annotations"), value)
        yield _moved(manifest, ("rbac", "serviceAccountAnnotations"), ("rbac", "serviceAccount", "annotations"), new)
    if document.has("serviceAccount") and not document.has("rbac", "serviceAccount"):
        yield _moved(manifest, ("serviceAccount",), ("rbac", "serviceAccount"), None)
    if isinstance(document.value("extraArgs"), list):
        yield _BROKEN.at(
            manifest,
            ("extraArgs",),
            seen="a list",
            expected="a mapping from flags to values",
            advice="write scan-interval: 10s for --scan-interval=10s",
        )
    expander = document.value("extraArgs", "expander")
    if document.value("expanderPriorities") and "priority" not in str(expander or "").split(","):
        new = changed(manifest.data, ("extraArgs", "expander"), "priority")
        yield _UNUSED.at(
            manifest, ("expanderPriorities",), seen="priorities, and another expander", expected="extraArgs.expander: priority", new=new
        )
    yield from _priorities(manifest)
    for name in _CREDENTIALS:
        if not _PLACEHOLDER.fullmatch(document.text(name)):
            yield _SECRET.at(
                manifest,
                (name,),
                seen="a credential as plain text",
                expected="no key: a role of the ServiceAccount (rbac.serviceAccount.annotations), or workload identity",
                advice="remove it, and renew it: everyone who may read the file has read it, and its history keeps it",
            )


def _priorities(manifest: Manifest) -> Iterator[Finding]:
    """D36, D37: the priorities, which the chart writes into the ConfigMap as they are."""
    value, path = manifest.document.value("expanderPriorities"), ("expanderPriorities",)
    tiers = value if isinstance(value, Mapping) else {}
    text = value if isinstance(value, str) else "".join(f"{key}: {json.dumps(patterns)}\n" for key, patterns in tiers.items())
    if not text:
        return
    findings, ordered = judge_priorities(text)
    for finding in findings:
        new = None
        if finding.check == "D37" and ordered is not None:
            by_number = {str(number): list(patterns) for number, patterns in ordered.tiers}
            lines = "".join(
                f"{number}:\n" + "".join(f"  - {json.dumps(pattern)}\n" for pattern in patterns) for number, patterns in by_number.items()
            )
            new = changed(manifest.data, path, {key: by_number[str(key)] for key in tiers} if tiers else lines)
        within = tuple(step for step in finding.field.split(".")[2:] if step in map(str, tiers))
        mistake = Mistake(finding.check, finding.severity, finding.effect)
        yield mistake.at(
            manifest, (*path, *within), seen=finding.seen, expected=finding.expected, new=new, advice=finding.fix.advice or _EXCHANGE
        )


def _moved(manifest: Manifest, path: Path, to: Path, new: Any) -> Finding:
    old, right = (".".join(str(step) for step in steps) for steps in (path, to))
    return _UNREAD.at(manifest, path, seen=old, expected=f"{right}, which the chart reads", new=new, advice=f"move it to {right}")


def _own(manifest: Manifest) -> Iterator[Finding]:
    for name in manifest.document.data if _is_own(manifest.document) else ():
        if name not in _OWN:
            near = nearest(str(name), _OWN)
            expected = f"one of {', '.join(_OWN)}" + (f"; did you mean {near}?" if near else "")
            new = renamed(manifest.data, (name,), near) if near else None
            yield _REFUSED.at(
                manifest, (name,), seen=str(name), expected=expected, new=new, advice="write it below the part that it is for"
            )


def _karpenter(manifest: Manifest) -> Iterator[Finding]:
    document = manifest.document
    if not _is_of_karpenter(document):
        return
    for path, to, release in _KARPENTER:
        names = tuple(str(step) for step in path)
        value = document.value(*names)
        if value is None:
            continue
        old, right = ".".join(names), ".".join(str(step) for step in to)
        expected = f"{right}, since Karpenter {release}" if to else f"no such key, since Karpenter {release}"
        same_level = to and to[:-1] == path[:-1]
        new = (
            renamed(manifest.data, path, str(to[-1]))
            if same_level
            else changed(_pruned(manifest.data, path), to, value)
            if to
            else _pruned(manifest.data, path)
        )
        yield _UNREAD.at(manifest, path, seen=old, expected=expected, new=new, advice=f"move it to {right}" if to else "remove it")


def _pruned(data: Any, path: Path) -> Any:
    """``data`` without ``path``, and without the mappings that this leaves empty."""
    new = removed(data, path)
    for length in range(len(path) - 1, 0, -1):
        at = new
        for step in path[:length]:
            at = at[step]
        if at:
            break
        new = removed(new, path[:length])
    return new


def _adapter(manifest: Manifest) -> Iterator[Finding]:
    document = manifest.document
    address = document.text("prometheus", "url")
    rules = document.value("rules")
    if not _is_of_adapter(manifest):
        return
    match = _PORT.match(address)
    if match is not None and document.value("prometheus", "port") not in (0, ""):
        new = changed(manifest.data, ("prometheus", "url"), match[1])
        new = changed(new, ("prometheus", "port"), int(match[2]))
        seen = f"{address}, to which the chart adds :{document.value('prometheus', 'port') or 9090}"
        yield _BROKEN.at(manifest, ("prometheus", "url"), seen=seen, expected=f"{match[1]}, and the port in prometheus.port", new=new)
    if isinstance(rules, list):
        yield _UNREAD.at(
            manifest,
            ("rules",),
            seen="a list",
            expected="rules.custom with the list",
            advice="write custom: below rules:, and the list below that",
        )


LINTS = (Lint("L18", "values of charts that are not read", find_wrong_values),)
