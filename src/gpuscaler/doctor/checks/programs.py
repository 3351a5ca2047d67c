"""The programs that checks know, found by the images of their containers: autoscalers of nodes and servers of metrics."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of, template_of, without_tag
from gpuscaler.doctor.evidence import Evidence

CLUSTER_AUTOSCALER, KARPENTER, GPUSCALER = "Cluster Autoscaler", "Karpenter", "gpuscaler"
OPENAI, ESCALATOR = "OpenAI's autoscaler", "Escalator"
GPUSCALER_METRICS, ADAPTER, KEDA = "the metrics API of gpuscaler", "prometheus-adapter", "KEDA"
#: The programs that add and remove machines.
NODE_AUTOSCALERS = (CLUSTER_AUTOSCALER, KARPENTER, GPUSCALER, OPENAI, ESCALATOR)

_BY_IMAGE: Mapping[str, str] = {
    "cluster-autoscaler": CLUSTER_AUTOSCALER,
    "kubernetes-ec2-autoscaler": OPENAI,
    "kubernetes-acs-engine-autoscaler": OPENAI,
    "escalator": ESCALATOR,
    "prometheus-adapter": ADAPTER,
    "k8s-prometheus-adapter": ADAPTER,
    "keda": KEDA,
    "keda-metrics-apiserver": KEDA,
}
_ARCHITECTURE = re.compile(r"-(amd64|arm64|s390x|ppc64le)$")
#: Clouds by the names that the programs have for them.
_CLOUDS: Mapping[str, str] = {"aws": "aws", "azure": "azure", "gce": "gcp", "gcp": "gcp", "alicloud": "alibaba"}
_CLOUD_LINE = re.compile(r"^cloud: *[\"']?(\w+)", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Program:
    """A workload that runs the program ``name`` in ``container``, and its command line as ``flags`` without dashes, each with its values.

    ``cloud`` is "aws", "azure", "gcp", "alibaba" or empty if it is unknown.
    """

    name: str
    workload: Document
    template: Document
    container: Document
    flags: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    cloud: str = ""

    @property
    def namespace(self) -> str:
        return self.workload.namespace or "default"

    @property
    def account(self) -> str:
        """The name of its ServiceAccount."""
        return account_of(self.template)

    @property
    def runs(self) -> bool:
        """Whether it has replicas."""
        return self.workload.number("spec", "replicas") != 0

    def flag(self, name: str, default: str = "") -> str:
        values = self.flags.get(name, ())
        return values[-1] if values else default


def account_of(template: Document) -> str:
    """The name of the ServiceAccount of a pod template; ``serviceAccount`` is its old name."""
    return template.text("spec", "serviceAccountName") or template.text("spec", "serviceAccount") or "default"


def workloads(evidence: Evidence) -> Iterator[tuple[Document, Document]]:
    """The objects with pods that a person edits, each with its pod template, without pods and Jobs that are finished."""
    for document in evidence.of(*TEMPLATES):
        template = template_of(document)
        owned = any(owner.flag("controller") for owner in document.parts("metadata", "ownerReferences"))
        if template is not None and not owned and not _is_finished(document):
            yield document, template


def _is_finished(document: Document) -> bool:
    if document.kind == "Pod":
        return document.text("status", "phase") in ("Succeeded", "Failed")
    ends = ("Complete", "Failed")
    return document.kind == "Job" and any(
        condition.text("type") in ends and condition.text("status") == "True" for condition in document.parts("status", "conditions")
    )


def programs(evidence: Evidence) -> Iterator[Program]:
    """The known programs among the workloads."""
    for document, template in workloads(evidence):
        for _, container in containers_of(template):
            words = (*container.texts("command"), *container.texts("args"))
            if name := _name_of(container.text("image"), words):
                flags = flags_of(words)
                yield Program(name, document, template, container, flags, _cloud_of(name, container, flags, document, evidence))
                break


def _name_of(image: str, words: tuple[str, ...]) -> str:
    path = without_tag(image)
    base = _ARCHITECTURE.sub("", path.rsplit("/", 1)[-1])
    if base == "gpuscaler":
        return GPUSCALER if "run" in words[:2] else GPUSCALER_METRICS if "metrics" in words[:2] else ""
    if "karpenter" in path.split("/") or base == "karpenter":
        return KARPENTER
    command = words[0].rsplit("/", 1)[-1] if words else ""
    return _BY_IMAGE.get(base) or _BY_IMAGE.get(command, "")


def flags_of(words: tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """``--name=value`` and ``--name value`` as values by name; the value of a flag without one is "true"."""
    flags: dict[str, list[str]] = {}
    for index, word in enumerate(words):
        if word.startswith("-") and len(word) > 1:
            name, equals, value = word.lstrip("-").partition("=")
            follows = words[index + 1] if index + 1 < len(words) else "-"
            flags.setdefault(name, []).append(value if equals else "true" if follows.startswith("-") else follows)
    return {name: tuple(values) for name, values in flags.items()}


def _cloud_of(name: str, container: Document, flags: Mapping[str, tuple[str, ...]], document: Document, evidence: Evidence) -> str:
    image = container.text("image")
    if name == CLUSTER_AUTOSCALER:
        # Without the flag, Cluster Autoscaler asks Google Cloud.
        return _CLOUDS.get(flags.get("cloud-provider", ("gce",))[-1], "")
    if name in (OPENAI, KARPENTER):
        return "azure" if "acs-engine" in image or "mcr.microsoft.com" in image else "aws"
    if name == GPUSCALER:
        template = template_of(document) or Document({})
        names = {volume.text("configMap", "name") for volume in template.parts("spec", "volumes")}
        for settings in evidence.of("ConfigMap"):
            if settings.name in names and settings.namespace == document.namespace:
                for text in settings.pairs("data").values():
                    if found := _CLOUD_LINE.search(text):
                        return _CLOUDS.get(found[1], "")
    return ""
