"""Kubeconfig files: read and merged as in client-go, and one context selected."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import yaml
from msgspec import Struct

from gpuscaler.kube.errors import AccessError


class Wire(Struct, rename="kebab", frozen=True):
    """Base of kubeconfig structs, with keys such as ``certificate-authority-data``; a few are in camel case and named below."""

    def __repr__(self) -> str:
        """The type without values, since many are secrets."""
        return f"{type(self).__name__}(…)"


class WireExtension(Wire, frozen=True):
    name: str = ""
    extension: Any = None


class WireCluster(Wire, frozen=True):
    server: str | None = None
    tls_server_name: str | None = None
    insecure_skip_tls_verify: bool | None = None
    certificate_authority: str | None = None
    certificate_authority_data: str | None = None
    proxy_url: str | None = None
    disable_compression: bool | None = None
    extensions: list[WireExtension] | None = None


class WireVariable(Wire, frozen=True):
    name: str
    value: str = ""


class WireExec(Wire, rename="camel", frozen=True):
    api_version: str | None = None
    command: str | None = None
    args: list[str] | None = None
    env: list[WireVariable] | None = None
    install_hint: str | None = None
    provide_cluster_info: bool | None = None
    interactive_mode: str | None = None


class WireAuthProvider(Wire, frozen=True):
    name: str | None = None


class WireUser(Wire, frozen=True):
    client_certificate: str | None = None
    client_certificate_data: str | None = None
    client_key: str | None = None
    client_key_data: str | None = None
    token: str | None = None
    token_file: str | None = msgspec.field(default=None, name="tokenFile")
    as_user: str | None = msgspec.field(default=None, name="as")
    as_uid: str | None = None
    as_groups: list[str] | None = None
    as_user_extra: dict[str, list[str]] | None = None
    username: str | None = None
    password: str | None = None
    auth_provider: WireAuthProvider | None = None
    exec: WireExec | None = None


class WireContext(Wire, frozen=True):
    cluster: str | None = None
    user: str | None = None
    namespace: str | None = None


class WireNamedCluster(Wire, frozen=True):
    name: str
    cluster: WireCluster | None = None


class WireNamedUser(Wire, frozen=True):
    name: str
    user: WireUser | None = None


class WireNamedContext(Wire, frozen=True):
    name: str
    context: WireContext | None = None


class WireConfig(Wire, frozen=True):
    current_context: str | None = None
    clusters: list[WireNamedCluster] | None = None
    users: list[WireNamedUser] | None = None
    contexts: list[WireNamedContext] | None = None


T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Entry(Generic[T]):
    """A named part of a kubeconfig and its file; relative paths start in the file's folder."""

    kind: str
    name: str
    value: T
    file: Path

    def __str__(self) -> str:
        return f"{self.kind} {self.name!r} of {self.file}"

    def path(self, text: str | None) -> Path | None:
        return self.file.parent / text if text else None


@dataclass(frozen=True, slots=True)
class SelectedContext:
    """One context with what it refers to. ``user`` is None if the context names none: requests are then anonymous."""

    context: Entry[WireContext]
    cluster: Entry[WireCluster]
    user: Entry[WireUser] | None


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """Several merged files: of parts with the same name, the one from the first file is used, and so is the first ``current-context``."""

    files: tuple[Path, ...]
    current: str = ""
    clusters: Mapping[str, Entry[WireCluster]] = field(default_factory=dict)
    users: Mapping[str, Entry[WireUser]] = field(default_factory=dict)
    contexts: Mapping[str, Entry[WireContext]] = field(default_factory=dict)

    def choose(self, context: str = "") -> SelectedContext:
        """The context of that name, else the current one; raises :class:`AccessError` if something it refers to is missing."""
        if not self.contexts:
            raise AccessError(f"{self}: saw no contexts, expected at least one; name another file with --kubeconfig or KUBECONFIG")
        name = context or self.current
        if not name:
            raise AccessError(
                f"{self}: saw no current-context, expected one of {_list_names(self.contexts)}; "
                "name one with --context or set current-context"
            )
        entry = self.contexts.get(name)
        if entry is None:
            origin = "" if context else " (the current-context)"
            raise AccessError(
                f"{self}: saw no context {name!r}{origin}, expected one of {_list_names(self.contexts)}; name one of them with --context"
            )
        cluster = self.clusters.get(entry.value.cluster or "")
        if cluster is None:
            raise AccessError(
                f"{entry}: saw the cluster {entry.value.cluster or ''!r}, expected one of {_list_names(self.clusters)}; correct the context"
            )
        user = self.users.get(entry.value.user or "")
        if user is None and entry.value.user:
            raise AccessError(f"{entry}: saw the user {entry.value.user!r}, expected one of {_list_names(self.users)}; correct the context")
        return SelectedContext(entry, cluster, user)

    def __str__(self) -> str:
        return f"kubeconfig {', '.join(map(str, self.files))}"


def read_kubeconfig(files: Sequence[Path]) -> Kubeconfig:
    """Read and merge the files, all of which must exist. Raises :class:`AccessError`."""
    current = ""
    clusters: dict[str, Entry[WireCluster]] = {}
    users: dict[str, Entry[WireUser]] = {}
    contexts: dict[str, Entry[WireContext]] = {}
    for file in dict.fromkeys(files):
        config = _load(file)
        current = current or config.current_context or ""
        for named_cluster in config.clusters or ():
            clusters.setdefault(named_cluster.name, Entry("cluster", named_cluster.name, named_cluster.cluster or WireCluster(), file))
        for named_user in config.users or ():
            users.setdefault(named_user.name, Entry("user", named_user.name, named_user.user or WireUser(), file))
        for named_context in config.contexts or ():
            contexts.setdefault(named_context.name, Entry("context", named_context.name, named_context.context or WireContext(), file))
    return Kubeconfig(tuple(files), current, clusters, users, contexts)


def _load(file: Path) -> WireConfig:
    try:
        text = file.read_bytes()
    except OSError as error:
        raise AccessError(
            f"kubeconfig {file}: saw {error.strerror}, expected a readable file; name another with --kubeconfig or KUBECONFIG"
        ) from error
    try:
        # The safe loader's C form; neither it nor the messages below quote the file, which contains secrets.
        loaded = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506
        return WireConfig() if loaded is None else msgspec.convert(loaded, WireConfig)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        place = f" at line {mark.line + 1}" if mark else ""
        # A constructor's error quotes what it could not construct.
        quotes = isinstance(error, yaml.constructor.ConstructorError)
        problem = "it cannot be read" if quotes else getattr(error, "problem", None) or "it cannot be read"
        raise AccessError(f"kubeconfig {file}: saw invalid YAML{place} ({problem}), expected a kubeconfig; correct the file") from None
    except (msgspec.ValidationError, ValueError, RecursionError) as error:
        problem = " ".join(str(error).split()) if isinstance(error, msgspec.ValidationError) else "it cannot be read"
        raise AccessError(f"kubeconfig {file}: saw something unexpected in a kubeconfig ({problem}); correct the file") from None


def _list_names(names: Iterable[str]) -> str:
    ordered = sorted(names)
    if not ordered:
        return "the file's, which has none"
    return ", ".join(map(repr, ordered[:20])) + (f" and {len(ordered) - 20} more" if len(ordered) > 20 else "")
