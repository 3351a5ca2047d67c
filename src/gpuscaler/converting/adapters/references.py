"""What objects refer to by name: the Secrets and ConfigMaps of pods, and the Services of APIServices and webhooks."""

from collections.abc import Iterator

from gpuscaler.converting.kinds import unknown_kind
from gpuscaler.converting.objects import Json, containers, get_items, get_mapping, pod_template, text

#: The annotation of a Secret with a token, which names the account.
ACCOUNT_ANNOTATION = "kubernetes.io/service-account.name"
_BOTH = frozenset({"Secret", "ConfigMap"})


def namespace_of(manifest: Json) -> str:
    return text(get_mapping(manifest, "metadata").get("namespace"))


def key_of(manifest: Json) -> tuple[str, str]:
    """Kind and name."""
    return text(manifest.get("kind")), text(get_mapping(manifest, "metadata").get("name"))


def account_of(workload: Json) -> str:
    """The name of the account that the pods of ``workload`` run as."""
    spec = get_mapping(pod_template(workload) or {}, "spec")
    return text(spec.get("serviceAccountName") or spec.get("serviceAccount")) or "default"


def pod_labels(workload: Json) -> Json:
    return get_mapping(get_mapping(pod_template(workload) or {}, "metadata"), "labels")


def selector_of(manifest: Json) -> Json | None:
    """The labels by which a Service selects pods, a budget those that it is for, or a policy of the network; None if there are none."""
    spec = get_mapping(manifest, "spec")
    if manifest.get("kind") == "Service":
        selector = spec.get("selector")
    elif manifest.get("kind") in ("PodDisruptionBudget", "NetworkPolicy"):
        described = get_mapping(spec, "selector" if manifest["kind"] == "PodDisruptionBudget" else "podSelector")
        selector = None if described.get("matchExpressions") else described.get("matchLabels")
    else:
        return None
    return selector if isinstance(selector, dict) and selector else None


def config_references(workload: Json) -> Iterator[tuple[str, str, bool]]:
    """Kind and name of each Secret and ConfigMap that its pods use, and whether it is optional."""
    spec = get_mapping(pod_template(workload) or {}, "spec")
    for volume in get_items(spec, "volumes"):
        yield from _mounted(volume, "secretName")
        for source in get_items(get_mapping(volume, "projected"), "sources"):
            yield from _mounted(source, "name")
    for container in containers(workload):
        for source in get_items(container, "envFrom"):
            yield from _named(source, {"secretRef": "Secret", "configMapRef": "ConfigMap"})
        for variable in get_items(container, "env"):
            yield from _named(get_mapping(variable, "valueFrom"), {"secretKeyRef": "Secret", "configMapKeyRef": "ConfigMap"})
    for pull_secret in get_items(spec, "imagePullSecrets"):
        if pull_secret.get("name"):
            yield "Secret", text(pull_secret["name"]), False


def mentions(manifest: Json) -> set[tuple[str, str, str | None]]:
    """The Secrets and ConfigMaps that any object mentions: kind, name, and namespace, None if it may be any.

    There are too many kinds for a table of their fields. What is below a key like ``secretName`` or ``configMapRef``, and the name beside
    a ``key``, counts; for kinds that Kubernetes does not have, every text does. It is no mistake to find too many.
    """
    own = namespace_of(manifest) or None
    always = _BOTH if unknown_kind(manifest) else frozenset[str]()
    contents = {"data", "stringData", "binaryData"} if manifest.get("kind") in _BOTH else set()
    found: set[tuple[str, str, str | None]] = set()
    stack: list[tuple[object, frozenset[str], str | None]] = [
        ({key: value for key, value in manifest.items() if key not in contents | {"kind", "apiVersion"}}, always, own)
    ]
    while stack:
        value, kinds, namespace = stack.pop()
        if isinstance(value, dict):
            stated = value.get("namespace")
            inner = stated if isinstance(stated, str) and stated else namespace
            if isinstance(name := value.get("name"), str):
                named = _BOTH if "key" in value else _BOTH & {text(value.get("kind"))}
                found |= {(kind, name, inner) for kind in named}
            stack += [(item, kinds | {kind for kind in _BOTH if kind.lower() in str(key).lower()}, inner) for key, item in value.items()]
        elif isinstance(value, list):
            stack += [(item, kinds, namespace) for item in value]
        elif isinstance(value, str):
            before, slash, name = value.rpartition("/")
            found |= {(kind, name if slash else value, before if slash else namespace) for kind in kinds}
    return found


def _mounted(source: Json, secret_key: str) -> Iterator[tuple[str, str, bool]]:
    for kind, key, name in (("Secret", "secret", secret_key), ("ConfigMap", "configMap", "name")):
        reference = get_mapping(source, key)
        if reference.get(name):
            yield kind, text(reference[name]), reference.get("optional") is True


def _named(source: Json, kinds: dict[str, str]) -> Iterator[tuple[str, str, bool]]:
    for key, kind in kinds.items():
        reference = get_mapping(source, key)
        if reference.get("name"):
            yield kind, text(reference["name"]), reference.get("optional") is True


def account_secrets(account: Json) -> Iterator[str]:
    """The names of the Secrets that a ServiceAccount lists; they have to be in its namespace."""
    for key in ("secrets", "imagePullSecrets"):
        yield from (text(item["name"]) for item in get_items(account, key) if item.get("name"))
