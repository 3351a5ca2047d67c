"""What only an autoscaler needs: its account, its rights, its Secrets. It goes with the autoscaler."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from gpuscaler.converting.adapters.placing import PodIndex
from gpuscaler.converting.adapters.references import (
    ACCOUNT_ANNOTATION,
    account_of,
    account_secrets,
    config_references,
    key_of,
    mentions,
    namespace_of,
    selector_of,
)
from gpuscaler.converting.autoscalers.chart_values import PRIORITIES
from gpuscaler.converting.autoscalers.recognising import ACS, OPENAI, Autoscaler
from gpuscaler.converting.objects import Json, get_items, get_mapping, pod_template, text

#: Annotations that bind an account to an identity of a cloud.
_IDENTITIES: Final = frozenset({"eks.amazonaws.com/role-arn", "azure.workload.identity/client-id"})
_TRUST: Final = ", and its identity in the cloud trusts this account only: gpuscaler's account needs an identity of its own"
#: Keys of Secrets that are credentials of a cloud, or whose values are.
_AWS_KEYS: Final = frozenset({"aws-access-key-id", "aws-secret-access-key", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"})
_AZURE_KEYS: Final = frozenset({"ClientID", "ClientSecret", "azure-sp-app-id", "azure-sp-secret", "ARM_CLIENT_ID", "ARM_CLIENT_SECRET"})

_Key = tuple[str, str, str]


def _placed(item: Json) -> _Key:
    return (*key_of(item), namespace_of(item))


class Needs:
    """Which objects need which others, counted once for all autoscalers."""

    def __init__(self, objects: list[Json]) -> None:
        workloads = [item for item in objects if pod_template(item) is not None]
        self._by_key: dict[_Key, list[Json]] = {}
        for item in objects:
            self._by_key.setdefault(_placed(item), []).append(item)
        self._accounts = Counter((account_of(item), namespace_of(item)) for item in workloads)
        #: Objects that mention a Secret or ConfigMap, by that.
        self._users: dict[tuple[str, str, str | None], set[int]] = {}
        for item in objects:
            for mentioned in mentions(item):
                self._users.setdefault(mentioned, set()).add(id(item))
        pods = PodIndex(workloads)
        #: Objects that select the pods of one workload only, by that.
        self._selecting: dict[int, list[Json]] = {}
        for item in objects:
            selected = list(pods.selected(selector_of(item), namespace_of(item)))
            if len(selected) == 1:
                self._selecting.setdefault(id(selected[0]), []).append(item)
        #: Bindings of one account only, by the account, and all references to roles.
        self._bindings: dict[tuple[str, str], list[Json]] = {}
        for item in objects:
            if item.get("kind") in ("RoleBinding", "ClusterRoleBinding") and len(subjects := _subjects(item)) == 1 and None not in subjects:
                self._bindings.setdefault(subjects.pop() or ("", ""), []).append(item)
        self._roles = Counter(_role(item) for item in objects if "roleRef" in item)
        self._tokens: dict[tuple[str, str], list[str]] = {}
        for item in objects:
            if item.get("kind") == "ServiceAccount":
                self._tokens.setdefault((key_of(item)[1], namespace_of(item)), []).extend(account_secrets(item))
            elif item.get("kind") == "Secret" and (
                owner := get_mapping(get_mapping(item, "metadata"), "annotations").get(ACCOUNT_ANNOTATION)
            ):
                self._tokens.setdefault((text(owner), namespace_of(item)), []).append(key_of(item)[1])

    def leftovers(self, autoscaler: Autoscaler) -> Iterator[tuple[Json, str]]:
        """Objects that nothing but the workload of ``autoscaler`` needs, each with what to know about it."""
        workload = autoscaler.workload
        namespace, account = namespace_of(workload), account_of(workload)
        needed = {(kind, name, namespace) for kind, name, _ in config_references(workload)}
        gone = {id(workload)}
        if account != "default" and self._accounts[account, namespace] == 1:
            for item in self._by_key.get(("ServiceAccount", account, namespace), ()):
                annotations = get_mapping(get_mapping(item, "metadata"), "annotations")
                gone.add(id(item))
                yield item, f"only the autoscaler runs as it{_TRUST if _IDENTITIES & annotations.keys() else ''}"
            yield from self._rights(account, namespace)
            needed |= {("Secret", name, namespace) for name in self._tokens.get((account, namespace), ())}
        for item in self._selecting.get(id(workload), ()):
            yield item, "it selects the pods of the autoscaler only"
        for key in sorted(needed):
            kind, name, _ = key
            users = self._users.get(key, set()) | self._users.get((kind, name, None), set())
            if users <= gone and key[:2] != PRIORITIES:
                for item in self._by_key.get(key, ()):
                    yield item, _credentials(autoscaler, item) or "only the autoscaler needs it"

    def _rights(self, account: str, namespace: str) -> Iterator[tuple[Json, str]]:
        bindings = self._bindings.get((account, namespace), [])
        for item in bindings:
            yield item, "it gives rights to the autoscaler only"
        for role, count in Counter(map(_role, bindings)).items():
            if self._roles[role] == count:
                for item in self._by_key.get(role, ()):
                    yield item, "it has rights of the autoscaler only"


def _subjects(binding: Json) -> set[tuple[str, str] | None]:
    """The accounts that are bound, by name and namespace; None for other subjects."""
    return {
        (text(subject.get("name")), text(subject.get("namespace")) or namespace_of(binding))
        if subject.get("kind") == "ServiceAccount"
        else None
        for subject in get_items(binding, "subjects")
    }


def _role(binding: Json) -> _Key:
    reference = get_mapping(binding, "roleRef")
    kind = text(reference.get("kind"))
    return kind, text(reference.get("name")), namespace_of(binding) if kind == "Role" else ""


def _credentials(autoscaler: Autoscaler, item: Json) -> str:
    keys = {*get_mapping(item, "data"), *get_mapping(item, "stringData")}
    instead = "gpuscaler has the identity of its ServiceAccount instead of static keys"
    if keys & _AZURE_KEYS or (autoscaler.program == ACS and item.get("kind") == "Secret"):
        return (
            f"{instead}: gpuscaler generate azure-role writes its roles, docs/how-to/azure.md connects them; then delete the client secret"
        )
    if keys & _AWS_KEYS or (autoscaler.program == OPENAI and item.get("kind") == "Secret"):
        return f"{instead}: gpuscaler generate iam writes its policy, attach it by Pod Identity or IRSA; then delete the access key"
    return ""
