"""Reads node properties from a group's tags: labels, taints, resources, options.

Anyone who may tag the group can write them: each tag is read by itself, and one that cannot be understood is reported and ignored.
Sources: Cluster Autoscaler's page about AWS, "Auto-Discovery Setup", whose keys Azure spells otherwise
(:mod:`gpuscaler.clouds.azure.templates.tags`); ``kube/`` is the prefix of OpenAI's autoscaler.
"""

from collections.abc import Mapping
from types import MappingProxyType

from msgspec import Struct

from gpuscaler.model.durations import parse_duration
from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.pods import Resources
from gpuscaler.model.quantities import QuantityError, milli, parse, shorten_value, whole
from gpuscaler.model.taints import Taint
from gpuscaler.model.well_known import HOSTNAME

PREFIX = "k8s.io/cluster-autoscaler/node-template/"
LABEL, TAINT, RESOURCE, OPTION = (f"{PREFIX}{kind}/" for kind in ("label", "taint", "resources", "autoscaling-options"))
OPENAI = "kube/"
EFFECTS = ("NoSchedule", "PreferNoSchedule", "NoExecute")
#: Cluster Autoscaler's options of a group that have a counterpart here, and those that have none.
IDLE, UNREADY = "scaledownunneededtime", "scaledownunreadytime"
_OTHER_OPTIONS = (
    "scaledownutilizationthreshold",
    "scaledowngpuutilizationthreshold",
    "maxnodeprovisiontime",
    "maxnodestartuptime",
    "ignoredaemonsetsutilization",
    "zeroormaxnodescaling",
)
_NATIVE = ("cpu", "memory", "ephemeral-storage", "pods")


class TagMistake(Struct, frozen=True, gc=False):
    """A tag, as the cloud spells it, that is ignored because of its value, and what was expected."""

    key: str
    value: str
    expected: str


class Hints(Struct, frozen=True, gc=False):
    """What tags say. ``resources`` are in planning's units and override those of the instance type; durations are in seconds.

    ``mistakes`` are the tags that could not be understood; ``warnings`` say the same, and more, in sentences.
    """

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    resources: Resources = {}
    idle_after: float | None = None
    warnings: tuple[str, ...] = ()
    unready_after: float | None = None
    mistakes: tuple[TagMistake, ...] = ()

    @property
    def tagged(self) -> tuple[str, ...]:
        """The fields of a pool that the tags set."""
        return tuple(name for name in ("idle_after", "unready_after") if getattr(self, name) is not None)


class _TagReader:
    def __init__(self, spelling: Mapping[str, str]) -> None:
        self.spelling = spelling
        self.labels: dict[str, str] = {}
        self.openai: dict[str, str] = {}
        self.taints: list[Taint] = []
        self.resources: dict[str, int] = {}
        self.times: dict[str, float] = {}
        self.warnings: list[str] = []
        self.mistakes: list[TagMistake] = []

    def warn(self, key: str, value: str, expected: str) -> None:
        spelled = self.spelling.get(key, key)
        self.mistakes.append(TagMistake(spelled, value, expected))
        self.warnings.append(f"the tag {shorten_value(spelled)} is {shorten_value(value)}, expected {expected}; it is ignored")

    def label(self, key: str, name: str, value: str, into: dict[str, str]) -> None:
        if not is_qualified_name(name) or name == HOSTNAME:
            self.warn(key, value, "the key of a label behind the prefix")
        elif not is_label_value(value):
            self.warn(key, value, "the value of a label: up to 63 letters, digits, '-', '_' and '.'")
        else:
            into[name] = value

    def taint(self, key: str, name: str, value: str) -> None:
        text, colon, effect = value.rpartition(":")
        if not is_qualified_name(name):
            self.warn(key, value, "the key of a taint behind the prefix")
        elif not colon or effect not in EFFECTS or not is_label_value(text):
            self.warn(
                key, value, f"VALUE:EFFECT such as true:NoSchedule, with one of {', '.join(EFFECTS)} (the taint's key is in the tag's)"
            )
        else:
            self.taints.append(Taint(name, text, effect))

    def resource(self, key: str, name: str, value: str) -> None:
        native = name in _NATIVE or name.startswith("hugepages-")
        if not native and not ("/" in name and is_qualified_name(name)):
            self.warn(key, value, f"{', '.join(_NATIVE)} or domain/name behind the prefix")
            return
        try:
            amount = parse(value)
        except QuantityError:
            self.warn(key, value, "a quantity such as 4 or 28Gi")
            return
        units = milli(amount) if name == "cpu" else whole(amount)
        if not 0 <= units < 2**63 or ("/" in name and amount.denominator != 1):
            self.warn(key, value, "a quantity such as 4 or 28Gi, not negative")
        else:
            self.resources[name] = units

    def option(self, key: str, name: str, value: str) -> None:
        if name in _OTHER_OPTIONS:
            spelled = self.spelling.get(key, key)
            self.warnings.append(f"the tag {spelled} is an option of Cluster Autoscaler that has no counterpart here; it is ignored")
            return
        if name not in (IDLE, UNREADY):
            self.warn(key, value, f"an option such as {IDLE}")
            return
        try:
            seconds = parse_duration(value)
        except ValueError:
            seconds = -1.0
        if seconds < 0:
            self.warn(key, value, "a duration such as 10m")
        elif not seconds and name == UNREADY:
            # To Cluster Autoscaler it is at once, to a pool it would be never.
            self.warn(key, value, "a duration above 0, such as 20m")
        else:
            self.times[name] = seconds


def hints_of(tags: Mapping[str, str], *, spelling: Mapping[str, str] = MappingProxyType({})) -> Hints:
    """Decode the tags. A ``node-template`` label takes precedence over a ``kube/`` one.

    ``spelling`` is how the cloud spells keys that it cannot hold as they are, for messages.
    """
    reader = _TagReader(spelling)
    for key, value in sorted(tags.items()):
        if key.startswith(LABEL):
            reader.label(key, key.removeprefix(LABEL), value, reader.labels)
        elif key.startswith(TAINT):
            reader.taint(key, key.removeprefix(TAINT), value)
        elif key.startswith(RESOURCE):
            reader.resource(key, key.removeprefix(RESOURCE), value)
        elif key.startswith(OPTION):
            reader.option(key, key.removeprefix(OPTION), value)
        elif key.startswith(PREFIX):
            reader.warn(key, value, "label/, taint/, resources/ or autoscaling-options/ behind node-template/")
        elif key.startswith(OPENAI):
            reader.label(key, key.removeprefix(OPENAI), value, reader.openai)
    for name in sorted(reader.labels.keys() & reader.openai.keys()):
        if reader.labels[name] != reader.openai[name]:
            reader.warnings.append(f"the tags {LABEL}{name} and {OPENAI}{name} differ; the first one is used")
    return Hints(
        {**reader.openai, **reader.labels},
        tuple(reader.taints),
        reader.resources,
        reader.times.get(IDLE),
        tuple(reader.warnings),
        reader.times.get(UNREADY),
        tuple(reader.mistakes),
    )
