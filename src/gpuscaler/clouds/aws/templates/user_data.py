"""Reads the labels and taints that a kubelet registers its node with from user data.

The formats are those that images of EKS read: nodeadm's NodeConfig (Amazon Linux 2023), a shell script that calls ``/etc/eks/bootstrap.sh``
or starts the kubelet itself (Amazon Linux 2, Ubuntu), Bottlerocket's TOML, and several of them as parts of one MIME message. Sources: the
EKS user guide, "Customize managed nodes with launch templates"; amazon-eks-ami, ``nodeadm/doc/api.md``; Bottlerocket,
"settings.kubernetes".
"""

import base64
import binascii
import email
import re
import shlex
import tomllib
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import yaml
from msgspec import Struct

from gpuscaler.model.labels import is_label_value, is_qualified_name
from gpuscaler.model.taints import Taint

_NODE_CONFIG: Final = "node.eks.aws/"
_EFFECTS: Final = frozenset({"NoSchedule", "PreferNoSchedule", "NoExecute"})
#: The only labels of Kubernetes' own that a kubelet may set, besides those with two prefixes; with any other it does not start. Source:
#: ``pkg/kubelet/apis/well_known_labels.go``.
_ALLOWED_LABELS: Final = frozenset(
    {
        "kubernetes.io/hostname",
        "kubernetes.io/arch",
        "kubernetes.io/os",
        "beta.kubernetes.io/arch",
        "beta.kubernetes.io/os",
        "beta.kubernetes.io/instance-type",
        "failure-domain.beta.kubernetes.io/region",
        "failure-domain.beta.kubernetes.io/zone",
        "node.kubernetes.io/instance-type",
        "topology.kubernetes.io/region",
        "topology.kubernetes.io/zone",
    }
)
_ALLOWED_DOMAINS: Final = ("kubelet.kubernetes.io", "node.kubernetes.io")


class UserDataError(Exception):
    """The kubelet does not start with this user data."""


class UnreadableUserDataError(UserDataError):
    """User data in a format that cannot be read here; an image may understand it."""


class Kubelet(Struct, frozen=True):
    """A node's registration. ``max_pods`` is 0 if user data leaves it to the image.

    ``replaces`` means that a flag in user data sets the taints and replaces those of earlier flags.
    """

    labels: Mapping[str, str] = {}
    taints: tuple[Taint, ...] = ()
    max_pods: int = 0
    replaces: bool = False


class _UserData:
    """Accumulates the parts of user data in order. A later flag of taints replaces an earlier one, as in the kubelet."""

    def __init__(self) -> None:
        self.labels: dict[str, str] = {}
        self.taints: tuple[Taint, ...] | None = None
        #: Taints of the configuration file, which apply if no flag sets any.
        self.configured: tuple[Taint, ...] = ()
        self.max_pods = 0

    def flag(self, name: str, value: str) -> None:
        if name == "node-labels":
            self.labels.update(_labels(value))
        elif name == "register-with-taints":
            self.taints = tuple(_taints(value))
        elif name == "max-pods" and value.isdigit():
            self.max_pods = int(value)


def kubelet_of(user_data: str, *, first: Iterable[str] = ()) -> Kubelet:
    """The registration that ``user_data``, in base64, configures; ``first`` are kubelet flags that come before those of user data.

    Raises :class:`UserDataError` if the kubelet would not start, :class:`UnreadableUserDataError` if that cannot be determined.
    """
    parsed = _UserData()
    for name, value in _flags(first):
        parsed.flag(name, value)
    before, parsed.taints = parsed.taints, None
    try:
        text = base64.b64decode(user_data, validate=True).decode()
        for part in _parts(text):
            _read(part, parsed)
    except (binascii.Error, yaml.YAMLError, AttributeError, TypeError, ValueError) as error:
        raise UnreadableUserDataError(f"saw user data that cannot be read, expected text in base64: {error}") from error
    replaces = parsed.taints is not None
    parsed.taints = parsed.taints if replaces else before
    for key, value in parsed.labels.items():
        _check_label(key, value)
    return Kubelet(parsed.labels, parsed.configured if parsed.taints is None else parsed.taints, parsed.max_pods, replaces)


def _parts(text: str) -> Iterator[str]:
    if not re.match(r"(?i)(mime-version|content-type):", text):
        yield text
        return
    message = email.message_from_string(text)
    for part in message.walk():
        if not part.is_multipart():
            content = part.get_payload(decode=True)
            yield content.decode() if isinstance(content, bytes) else ""


def _read(part: str, user_data: _UserData) -> None:
    if _NODE_CONFIG in part:
        for config in yaml.load_all(part, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)):
            _node_config(config, user_data)
    elif "[settings" in part:
        _bottlerocket(tomllib.loads(part), user_data)
    else:
        for name, value in _flags(_script_words(part)):
            user_data.flag(name, value)


def _node_config(config: Mapping[str, Any], user_data: _UserData) -> None:
    kubelet = (config.get("spec") or {}).get("kubelet") or {}
    for name, value in _flags(kubelet.get("flags") or ()):
        user_data.flag(name, value)
    file = kubelet.get("config") or {}
    user_data.max_pods = user_data.max_pods or int(file.get("maxPods") or 0)
    if taints := file.get("registerWithTaints"):
        user_data.configured = tuple(_taint(taint.get("key", ""), taint.get("value") or "", taint.get("effect", "")) for taint in taints)


def _bottlerocket(settings: Mapping[str, Any], user_data: _UserData) -> None:
    kubernetes = (settings.get("settings") or {}).get("kubernetes") or {}
    user_data.labels.update(kubernetes.get("node-labels") or {})
    user_data.max_pods = int(kubernetes.get("max-pods") or user_data.max_pods)
    for key, values in (kubernetes.get("node-taints") or {}).items():
        for text in [values] if isinstance(values, str) else values:
            value, _, effect = text.rpartition(":")
            user_data.taints = (*(user_data.taints or ()), _taint(key, value, effect))


def _script_words(script: str) -> Iterator[str]:
    """The words of a script, including those inside quotes, since bootstrap.sh takes the kubelet's arguments as one."""
    for line in script.replace("\\\n", " ").splitlines():
        try:
            words = shlex.split(line, comments=True)
        except ValueError:
            continue
        for word in words:
            yield from word.split() if "--" in word and " " in word else (word,)


def _flags(words: Iterable[str]) -> Iterator[tuple[str, str]]:
    """Flags with their values, which follow ``=`` or are the next word."""
    name = ""
    for word in words:
        # In an assignment to a variable, the variable's name precedes the first flag.
        match = re.match(r"(?:\w+=)?['\"]?--([a-z-]+)(?:=(.*))?$", word, re.DOTALL)
        if match is None:
            if name:
                yield name, word
            name = ""
        elif match[2] is None:
            name = match[1]
        else:
            yield match[1], match[2].strip("'\"")
            name = ""


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for label in filter(None, text.split(",")):
        key, equals, value = label.partition("=")
        if not equals:
            raise UserDataError(f"--node-labels: saw {label!r}, expected key=value")
        yield key.strip(), value.strip()


def _taints(text: str) -> Iterator[Taint]:
    for taint in filter(None, text.split(",")):
        key_and_value, _, effect = taint.rpartition(":")
        key, _, value = key_and_value.partition("=")
        yield _taint(key, value, effect)


def _taint(key: str, value: str, effect: str) -> Taint:
    if effect not in _EFFECTS or not is_qualified_name(key) or not is_label_value(value):
        raise UserDataError(f"invalid taint: saw key {key!r}, value {value!r}, effect {effect!r}")
    return Taint(key, value, effect)


def _check_label(key: str, value: str) -> None:
    if not is_qualified_name(key) or not is_label_value(value):
        raise UserDataError(f"--node-labels: saw {key}={value}, expected the key and value of a label")
    if not may_set(key):
        raise UserDataError(f"unknown 'kubernetes.io' or 'k8s.io' labels specified with --node-labels: {key}")


def may_set(key: str) -> bool:
    """Whether a kubelet may give its node a label with this key. With any other of Kubernetes' own, it does not start."""
    space = key.partition("/")[0] if "/" in key else ""
    reserved = space in {"kubernetes.io", "k8s.io"} or space.endswith((".kubernetes.io", ".k8s.io"))
    allowed = key in _ALLOWED_LABELS or any(space == domain or space.endswith(f".{domain}") for domain in _ALLOWED_DOMAINS)
    return allowed or not reserved
