"""Moves what prometheus-adapter needs to the namespace in which it runs: its account, its Services, its bindings, its mounts.

A pod reads only Secrets and ConfigMaps of its own namespace, a binding names the namespace of the account, a Service and a NetworkPolicy
select pods of their own namespace only, and the API server calls a Service by a name that contains the namespace. If one of them is left
behind, everything can be applied but nothing works.
"""

from collections.abc import Iterable

from gpuscaler.converting.adapters.adapter import adapter_objects, service_namespace
from gpuscaler.converting.adapters.certificates import check_certificates, is_issued
from gpuscaler.converting.adapters.moving import AdapterWorkload, ObjectSet, adapter_workloads
from gpuscaler.converting.adapters.references import (
    account_secrets,
    config_references,
    key_of,
    mentions,
    namespace_of,
    selects_pods,
    service_references,
)
from gpuscaler.converting.objects import AddObjectNote, Json, ensure_mapping, get_items, get_mapping, text

_READER = "extension-apiserver-authentication-reader"
#: Namespaces that every cluster has.
_ALWAYS = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})


def fix_namespaces(objects: list[Json], add_note: AddObjectNote) -> None:
    """Correct ``objects`` that do not fit the namespace in which prometheus-adapter runs, and note what cannot be corrected."""
    lot = ObjectSet(objects, add_note)
    namespace = service_namespace(objects)
    for manifest in adapter_objects(objects) if namespace else ():
        if not namespace_of(manifest):
            lot.add_namespace(manifest, namespace, "where its APIService expects it")
    adapters = list(adapter_workloads(objects))
    for adapter in adapters:
        for manifest in objects:
            if manifest.get("kind") in ("RoleBinding", "ClusterRoleBinding"):
                _fix_binding(manifest, adapter, lot)
        _move_account(adapter, lot)
        _move_selecting(adapter, lot)
        for kind, name, optional in sorted(set(config_references(adapter.workload))):
            _move_config(kind, name, adapter, lot, optional=optional)
        check_certificates(adapter, lot)
        _correct_services(adapter, lot)
    _follow_services(lot)
    _note_new_namespaces(adapters, lot)
    for manifest in objects:
        if manifest.get("kind") in ("Role", "ClusterRole"):
            _note_wide_rights(manifest, add_note)


def _fix_binding(binding: Json, adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Change ``binding`` to name the account in its current namespace."""
    subjects = [
        item
        for item in get_items(binding, "subjects")
        if item.get("kind") == "ServiceAccount" and text(item.get("name")) == adapter.account
    ]
    changed = False
    for subject in subjects:
        before = text(subject.get("namespace"))
        if before != adapter.namespace and not _is_account_of_others(adapter, before, lot):
            subject["namespace"] = adapter.namespace
            changed = True
            lot.add_note(
                binding,
                f"its subject ServiceAccount {adapter.account} is in {adapter.namespace} now{f', not in {before}' if before else ''}",
            )
    if subjects and binding.get("kind") == "RoleBinding":
        metadata, role = ensure_mapping(binding, "metadata"), get_mapping(binding, "roleRef")
        namespace = "kube-system" if text(role.get("name")) == _READER else adapter.namespace
        if not metadata.get("namespace"):
            lot.add_namespace(binding, namespace, "where its role is")
            for manifest in lot.named("Role", text(role.get("name"))) if role.get("kind") == "Role" else ():
                ensure_mapping(manifest, "metadata").setdefault("namespace", namespace)
        elif changed and text(metadata["namespace"]) not in (namespace, adapter.namespace):
            lot.add_note(
                binding,
                f"it grants rights in {text(metadata['namespace'])} only, and the account is in {adapter.namespace} now: "
                "if its role is about the namespace of the account, move both",
            )


def _is_account_of_others(adapter: AdapterWorkload, namespace: str, lot: ObjectSet) -> bool:
    """Whether the account of that name in ``namespace`` is another one, which stays there."""
    return any(
        namespace_of(account) == namespace
        and (lot.exists("ServiceAccount", adapter.account, adapter.namespace) or not lot.is_only_of(adapter, account))
        for account in lot.named("ServiceAccount", adapter.account)
    )


def _move_account(adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Move the account of the pods to their namespace, with the Secrets that it lists."""
    accounts = lot.named("ServiceAccount", adapter.account)
    account = next((item for item in accounts if namespace_of(item) == adapter.namespace), None)
    if account is None and accounts:
        account = accounts[0]
        if not lot.is_only_of(adapter, account):
            lot.add_note(
                adapter.workload,
                f"its pods run as the ServiceAccount {adapter.account} in {adapter.namespace}; here it is in {namespace_of(account)}, "
                "where other pods need it too: copy it",
            )
            return
        lot.move(account, adapter.namespace, "where the pods that run as it are")
    for name in sorted(set(account_secrets(account, lot.objects))) if account is not None else ():
        _move_config("Secret", name, adapter, lot, optional=True)


def _move_selecting(adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Move what selects the pods, or scales them: it has an effect in its own namespace only."""
    target = (adapter.workload.get("kind"), key_of(adapter.workload)[1])
    for manifest in lot.objects:
        scaled = get_mapping(get_mapping(manifest, "spec"), "scaleTargetRef")
        scales = manifest.get("kind") == "HorizontalPodAutoscaler" and (scaled.get("kind"), text(scaled.get("name"))) == target
        if (not scales and not selects_pods(manifest, [adapter.labels])) or namespace_of(manifest) == adapter.namespace:
            continue
        reason = f"where the pods that it {'scales' if scales else 'selects'} run"
        if not namespace_of(manifest):
            lot.add_namespace(manifest, adapter.namespace, reason)
        elif lot.is_only_of(adapter, manifest) and not lot.exists(*key_of(manifest), adapter.namespace):
            lot.move(manifest, adapter.namespace, reason)


def _move_config(kind: str, name: str, adapter: AdapterWorkload, lot: ObjectSet, *, optional: bool) -> None:
    """Move a Secret or ConfigMap that the pods need to their namespace."""
    if lot.exists(kind, name, adapter.namespace) or (kind == "Secret" and is_issued(name, adapter, lot)):
        return
    named = lot.named(kind, name)
    if not named:
        if not optional:
            lot.add_note(
                adapter.workload,
                f"its pods need the {kind} {name}, which is not among these objects: make sure that it is in {adapter.namespace}",
            )
        return
    before = namespace_of(named[0])
    if before and not lot.is_only_of(adapter, named[0]):
        lot.add_note(
            adapter.workload,
            f"its pods need the {kind} {name} in {adapter.namespace}; here it is in {before}, where other pods need it too: copy it",
        )
        return
    lot.move(named[0], adapter.namespace, "where the pods that need it run")


def _correct_services(adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Let APIServices name the namespace in which the Services of prometheus-adapter are."""
    for manifest in lot.objects:
        if manifest.get("kind") != "APIService" or not text(get_mapping(manifest, "spec").get("group")).endswith(".metrics.k8s.io"):
            continue
        for reference in service_references(manifest):
            name, before = text(reference.get("name")), text(reference.get("namespace"))
            if name in adapter.services and before != adapter.namespace and not lot.exists("Service", name, before):
                _point(manifest, reference, adapter.namespace, lot)


def _follow_services(lot: ObjectSet) -> None:
    """Let other objects name the Services where they moved to, and note where only a person can tell."""
    for (name, before), namespace in lot.services.items():
        hosts = (f"{name}.{before}.svc", f"//{name}.{before}:", f"//{name}.{before}/")
        for manifest in lot.objects if before else ():
            for reference in service_references(manifest):
                if (text(reference.get("name")), text(reference.get("namespace"))) == (name, before):
                    _point(manifest, reference, namespace, lot)
            if manifest.get("kind") not in ("Certificate", "Secret") and mentions(manifest, hosts):
                lot.add_note(manifest, f"it mentions {name}.{before}, and the Service is {name}.{namespace} now: correct it")
            if manifest.get("kind") == "Ingress" and namespace_of(manifest) == before and mentions(get_mapping(manifest, "spec"), (name,)):
                lot.add_note(manifest, f"it reaches Services of its own namespace only, and the Service {name} is in {namespace} now")


def _point(manifest: Json, reference: Json, namespace: str, lot: ObjectSet) -> None:
    before = text(reference.get("namespace"))
    reference["namespace"] = namespace
    lot.add_note(manifest, f"its Service {text(reference.get('name'))} is in {namespace}{f', not in {before}' if before else ''}")


def _note_new_namespaces(adapters: Iterable[AdapterWorkload], lot: ObjectSet) -> None:
    """Note a namespace to which something moved and that these objects do not make."""
    for namespace, workload in {adapter.namespace: adapter.workload for adapter in adapters}.items():
        if namespace in lot.namespaces - _ALWAYS and not lot.named("Namespace", namespace):
            lot.add_note(
                workload, f"no Namespace {namespace} is among these objects: run kubectl create namespace {namespace} if there is none"
            )


def _note_wide_rights(role: Json, add_note: AddObjectNote) -> None:
    """Note rights that are wider than necessary."""
    for place, rule in enumerate(get_items(role, "rules")):
        groups, verbs = (
            [text(entry) for entry in entries] if isinstance(entries := rule.get(key), list) else [] for key in ("apiGroups", "verbs")
        )
        if "*" in verbs and any(group.endswith("metrics.k8s.io") for group in groups):
            add_note(role, f"rules[{place}] allows every verb on {', '.join(groups)}; get and list are enough to read metrics")
