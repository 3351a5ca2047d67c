"""What only an autoscaler needs: its account, its rights, its Secrets. It goes with the autoscaler."""

from collections.abc import Iterator
from typing import Final

from gpuscaler.converting.adapters.references import (
    account_of,
    account_secrets,
    config_references,
    key_of,
    namespace_of,
    pod_labels,
    selects_pods,
)
from gpuscaler.converting.autoscalers.recognising import ACS, OPENAI, Autoscaler
from gpuscaler.converting.objects import Json, get_items, get_mapping, pod_template, text

#: The ConfigMap of the priority expander, which gpuscaler reads.
PRIORITIES: Final = ("ConfigMap", "cluster-autoscaler-priority-expander")
#: Annotations that bind an account to an identity of a cloud.
_IDENTITIES: Final = frozenset({"eks.amazonaws.com/role-arn", "azure.workload.identity/client-id"})
_TRUST: Final = ", and its identity in the cloud trusts this account only: gpuscaler's account needs an identity of its own"
#: Keys of Secrets that are credentials of a cloud, or whose values are.
_AWS_KEYS: Final = frozenset({"aws-access-key-id", "aws-secret-access-key", "AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"})
_AZURE_KEYS: Final = frozenset({"ClientID", "ClientSecret", "azure-sp-app-id", "azure-sp-secret", "ARM_CLIENT_ID", "ARM_CLIENT_SECRET"})


def leftovers(autoscaler: Autoscaler, objects: list[Json]) -> Iterator[tuple[Json, str]]:
    """Objects that nothing but the workload of ``autoscaler`` needs, each with what to know about it."""
    workload = autoscaler.workload
    namespace, account = namespace_of(workload), account_of(workload)
    others = [item for item in objects if item is not workload and pod_template(item) is not None and namespace_of(item) == namespace]
    own_account = account != "default" and not any(account_of(item) == account for item in others)
    labels = [pod_labels(other) for other in others]
    bound: list[Json] = []
    for item in objects:
        if own_account and key_of(item) == ("ServiceAccount", account) and namespace_of(item) == namespace:
            annotations = get_mapping(get_mapping(item, "metadata"), "annotations")
            yield item, f"only the autoscaler runs as it{_TRUST if _IDENTITIES & annotations.keys() else ''}"
        elif own_account and _is_bound_alone(item, account, namespace):
            bound.append(item)
            yield item, "it gives rights to the autoscaler only"
        elif selects_pods(item, [pod_labels(workload)]) and namespace_of(item) == namespace and not selects_pods(item, labels):
            yield item, "it selects the pods of the autoscaler only"
    yield from _roles(bound, objects)
    yield from _configuration(autoscaler, others, objects, own_account=own_account)


def _is_bound_alone(item: Json, account: str, namespace: str) -> bool:
    subjects = get_items(item, "subjects")
    return (
        item.get("kind") in ("RoleBinding", "ClusterRoleBinding")
        and bool(subjects)
        and all(
            subject.get("kind") == "ServiceAccount"
            and (text(subject.get("name")), text(subject.get("namespace")) or namespace_of(item)) == (account, namespace)
            for subject in subjects
        )
    )


def _roles(bound: list[Json], objects: list[Json]) -> Iterator[tuple[Json, str]]:
    """The roles that only ``bound`` refer to."""
    ours = {id(item) for item in bound}
    kept = {_role(item) for item in objects if "roleRef" in item and id(item) not in ours}
    gone = {_role(item) for item in bound} - kept
    for item in objects:
        place = namespace_of(item) if item.get("kind") == "Role" else ""
        if item.get("kind") in ("Role", "ClusterRole") and (*key_of(item), place) in gone:
            yield item, "it has rights of the autoscaler only"


def _role(binding: Json) -> tuple[str, str, str]:
    reference = get_mapping(binding, "roleRef")
    kind = text(reference.get("kind"))
    return kind, text(reference.get("name")), namespace_of(binding) if kind == "Role" else ""


def _configuration(autoscaler: Autoscaler, others: list[Json], objects: list[Json], *, own_account: bool) -> Iterator[tuple[Json, str]]:
    """The Secrets and ConfigMaps of the autoscaler, with what replaces the credentials in them."""
    namespace = namespace_of(autoscaler.workload)
    needed = {(kind, name) for kind, name, _ in config_references(autoscaler.workload)}
    if own_account:
        for item in objects:
            if key_of(item) == ("ServiceAccount", account_of(autoscaler.workload)) and namespace_of(item) == namespace:
                needed |= {("Secret", name) for name in account_secrets(item, objects)}
    for other in others:
        needed -= {(kind, name) for kind, name, _ in config_references(other)}
    for item in objects:
        if key_of(item) in needed - {PRIORITIES} and namespace_of(item) == namespace:
            yield item, _credentials(autoscaler, item) or "only the autoscaler needs it"


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
