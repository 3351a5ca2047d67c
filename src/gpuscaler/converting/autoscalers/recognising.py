"""Finds workloads that run an autoscaler of nodes, by the images and the commands of their containers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from gpuscaler.converting.adapters.references import namespace_of
from gpuscaler.converting.autoscalers import ancestors, cluster_autoscaler_flags
from gpuscaler.converting.autoscalers.chart_values import CHART
from gpuscaler.converting.autoscalers.flags import Flag, command_line, environment, flags_of, sources_of
from gpuscaler.converting.objects import Json, containers, get_mapping, pod_template, text
from gpuscaler.doctor.documents import without_tag

CLUSTER_AUTOSCALER, OPENAI, ACS = "Cluster Autoscaler", "OpenAI's autoscaler", "acs-engine's autoscaler"
_BY_NAME: Final = {
    "cluster-autoscaler": CLUSTER_AUTOSCALER,
    "kubernetes-ec2-autoscaler": OPENAI,
    "kubernetes-acs-engine-autoscaler": ACS,
    "kubernetes-acs-autoscaler": ACS,
}
_ARCHITECTURE: Final = re.compile(r"-(amd64|arm64|s390x|ppc64le)$")
_BOOLEANS: Final = {CLUSTER_AUTOSCALER: cluster_autoscaler_flags.BOOLEANS, OPENAI: ancestors.BOOLEANS, ACS: ancestors.BOOLEANS}
_KINDS: Final = ("Deployment", "ReplicationController", "ReplicaSet", "StatefulSet", "DaemonSet", "Pod", CHART)
#: Kinds of Flux, Argo CD and k3s that install charts.
_INSTALLERS: Final = ("HelmRelease", "HelmChart", "Application", "ApplicationSet", "Kustomization")


@dataclass(frozen=True, slots=True)
class Autoscaler:
    """A workload that runs the autoscaler ``program`` in ``container``. ``variables`` are those whose values are known."""

    program: str
    workload: Json
    container: Json
    flags: tuple[Flag, ...]
    variables: dict[str, str]


def autoscalers(objects: list[Json]) -> Iterator[Autoscaler]:
    """The workloads that run an autoscaler of nodes."""
    sources = sources_of(objects)
    for manifest in objects:
        if manifest.get("kind") not in _KINDS or pod_template(manifest) is None:
            continue
        for container in containers(manifest):
            # Most containers are none: their variables need not be looked up.
            if not (program := _program(container, command_line(container, {}))):
                continue
            known = environment(container, namespace_of(manifest), sources)
            flags = flags_of(command_line(container, known), _BOOLEANS[program])
            yield Autoscaler(program, manifest, container, tuple(flags), known)
            break


def installed_by(manifest: Json) -> str:
    """The autoscaler that an object of a GitOps tool installs from its Helm chart or a folder; empty if it installs none."""
    if text(manifest.get("kind")) not in _INSTALLERS:
        return ""
    for name in _charts(manifest.get("spec")):
        last = without_tag(name.rstrip("/")).rpartition("/")[2]
        if program := next((program for known, program in _BY_NAME.items() if re.match(f"{known}([-_.].*)?$", last)), ""):
            return program
    return ""


def _charts(spec: Any) -> Iterator[str]:
    """What may name a chart in ``spec``: charts, folders and references, at any depth."""
    waiting = [spec]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            yield from (value[key] for key in ("chart", "path") if isinstance(value.get(key), str))
            yield text(get_mapping(value, "chartRef").get("name"))
            # The values of the chart are no statement about what is installed.
            waiting += [item for key, item in value.items() if key not in ("values", "valuesObject")]


def _program(container: Json, words: list[str]) -> str:
    image = _ARCHITECTURE.sub("", without_tag(text(container.get("image"))).rpartition("/")[2])
    command = next(iter(words), "").rpartition("/")[2]
    if named := _BY_NAME.get(image) or _BY_NAME.get(command):
        return ACS if named == OPENAI and _has(words, "resource-group") else named
    # The images of the old ones were built by everyone.
    if any(word.rpartition("/")[2] == "main.py" for word in words[:3]) and command.startswith("python"):
        if _has(words, "resource-group"):
            return ACS
        if _has(words, "cluster-name") and (_has(words, "regions") or _has(words, "aws-regions")):
            return OPENAI
    return ""


def _has(words: Iterable[str], flag: str) -> bool:
    return any(word.strip() == f"--{flag}" or word.startswith(f"--{flag}=") for word in words)
