"""Finds workloads that run an autoscaler of nodes, by the images and the commands of their containers."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Final

from gpuscaler.converting.adapters.references import namespace_of
from gpuscaler.converting.autoscalers import ancestors, cluster_autoscaler_flags
from gpuscaler.converting.autoscalers.chart_values import CHART
from gpuscaler.converting.autoscalers.flags import Flag, command_line, environment, flags_of, sources_of
from gpuscaler.converting.objects import Json, containers, pod_template, text
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
