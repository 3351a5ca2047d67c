"""Lets what prometheus-adapter needs be in the namespace in which it runs: its account, its Services, its bindings, its mounts.

A pod reads only Secrets and ConfigMaps of its own namespace, a binding names the namespace of the account, a Service and a NetworkPolicy
select pods of their own namespace only, and the API server calls a Service by a name that contains the namespace. If one of them is
elsewhere, everything can be applied but nothing works.

Who writes a workload chooses its image, its labels and the names in it, and may be allowed to write in one namespace only. So an object
whose namespace is stated is never moved, and nothing is directed elsewhere. Objects without a namespace get the one that an APIService
names for prometheus-adapter: only administrators may write APIServices. What does not fit otherwise is noted for a person to correct.
"""

from gpuscaler.converting.adapters.adapter import is_adapter, is_metrics_api, named_services
from gpuscaler.converting.adapters.certificates import check_certificates, is_issued
from gpuscaler.converting.adapters.placing import AdapterWorkload, ObjectSet, PodIndex
from gpuscaler.converting.adapters.references import (
    account_secrets,
    config_references,
    key_of,
    namespace_of,
    pod_labels,
    selector_of,
)
from gpuscaler.converting.adapters.rights import READER, is_known
from gpuscaler.converting.objects import AddObjectNote, Json, containers, get_items, get_mapping, text

#: Namespaces that every cluster has.
_ALWAYS = frozenset({"default", "kube-system", "kube-public", "kube-node-lease"})
_SELECTING = ("Service", "PodDisruptionBudget", "NetworkPolicy")


def fix_namespaces(objects: list[Json], add_note: AddObjectNote) -> None:
    """Complete the namespaces of ``objects`` that prometheus-adapter needs, and note what only a person may correct."""
    lot = ObjectSet(objects, add_note)
    known = _known_workload(lot)
    lot.index_workloads()
    adapters = [
        AdapterWorkload(workload, namespace_of(workload), is_known=workload is known)
        for workload in lot.workloads
        if namespace_of(workload) and any(map(is_adapter, containers(workload)))
    ]
    _settle_selecting(adapters, lot)
    for adapter in adapters:
        _settle_account(adapter, lot)
        for kind, name, optional in sorted(set(config_references(adapter.workload))):
            _settle_config(kind, name, adapter, lot, optional=optional)
        check_certificates(adapter, lot)
    _settle_bindings(adapters, lot)
    _check_services(adapters, lot)
    _note_new_namespaces(adapters, lot)
    for manifest in lot.of_kind("Role", "ClusterRole"):
        _note_wide_rights(manifest, add_note)


def _known_workload(lot: ObjectSet) -> Json | None:
    """The workload behind the Service that an APIService of metrics names, if it is the only one. Without a namespace, it gets that one."""
    named = named_services(lot.objects)
    if len({namespace for _, namespace in named}) != 1:
        return None
    namespace = next(iter(named))[1]
    selectors = [
        selector
        for name, _ in named
        for service in lot.named("Service", name)
        if namespace_of(service) in ("", namespace) and (selector := selector_of(service))
    ]
    behind = [
        workload
        for workload in lot.objects
        if namespace_of(workload) in ("", namespace)
        and any(map(is_adapter, containers(workload)))
        and any(selector.items() <= pod_labels(workload).items() for selector in selectors)
    ]
    if len(behind) > 1:
        for workload in behind:
            if not namespace_of(workload):
                lot.refuse(
                    workload, f"its namespace is not stated, and {len(behind)} workloads are behind the Service in {namespace}: state it"
                )
        return None
    for workload in behind:
        if not namespace_of(workload):
            lot.add_namespace(workload, namespace, "where its APIService expects it")
    return behind[0] if behind else None


def _settle(manifest: Json, adapter: AdapterWorkload, lot: ObjectSet, reason: str) -> None:
    """Complete the namespace of what the pods of ``adapter`` need, or note that it is elsewhere."""
    namespace = namespace_of(manifest)
    if not namespace and adapter.is_known and not lot.is_shared(manifest):
        lot.add_namespace(manifest, adapter.namespace, reason)
        return
    shared = " where other pods need it too: copy it" if lot.is_shared(manifest) else " copy it or move it if it is for this workload"
    kind, name = key_of(manifest)
    where = f"in {namespace}" if namespace else "without a namespace"
    lot.refuse(
        adapter.workload, f"it needs the {kind} {name} in {adapter.namespace}, {reason}; here it is {where},{shared}. Nothing was moved"
    )


def _settle_account(adapter: AdapterWorkload, lot: ObjectSet) -> None:
    """Settle the account of the pods, with the Secrets that it lists. Every namespace has an account ``default``."""
    accounts = lot.named("ServiceAccount", adapter.account)
    if adapter.account != "default" and accounts and not lot.exists("ServiceAccount", adapter.account, adapter.namespace):
        _settle(accounts[0], adapter, lot, "where the pods that run as it are")
    for account in accounts:
        if namespace_of(account) == adapter.namespace:
            tokens = (key_of(token)[1] for token in lot.tokens_of(adapter.account))
            for name in sorted({*account_secrets(account), *tokens}):
                _settle_config("Secret", name, adapter, lot, optional=True)


def _settle_selecting(adapters: list[AdapterWorkload], lot: ObjectSet) -> None:
    """Settle what selects the pods, or scales them: it has an effect in its own namespace only. Notes the Services of each adapter."""
    by_workload = {id(adapter.workload): adapter for adapter in adapters}
    pods = PodIndex(adapter.workload for adapter in sorted(adapters, key=lambda adapter: not adapter.is_known))
    scaled = {key_of(adapter.workload): adapter for adapter in reversed(adapters)}
    for manifest in lot.objects:
        found: AdapterWorkload | None = None
        namespace = namespace_of(manifest)
        if manifest.get("kind") == "HorizontalPodAutoscaler":
            target = get_mapping(get_mapping(manifest, "spec"), "scaleTargetRef")
            key = (text(target.get("kind")), text(target.get("name")))
            found = None if lot.exists(*key, namespace) else scaled.get(key)
        elif manifest.get("kind") in _SELECTING and (selector := selector_of(manifest)):
            selects_here = any(lot.pods.selected(selector, namespace))
            found = None if selects_here else next((by_workload[id(item)] for item in pods.selected(selector, None)), None)
        if found is not None and not lot.exists(*key_of(manifest), found.namespace):
            scales = manifest.get("kind") == "HorizontalPodAutoscaler"
            _settle(manifest, found, lot, f"where the pods that it {'scales' if scales else 'selects'} run")
        if manifest.get("kind") == "Service":
            for workload in lot.pods.selected(selector_of(manifest), namespace_of(manifest)):
                if id(workload) in by_workload:
                    by_workload[id(workload)].services.append(key_of(manifest)[1])


def _settle_config(kind: str, name: str, adapter: AdapterWorkload, lot: ObjectSet, *, optional: bool) -> None:
    """Settle a Secret or ConfigMap that the pods need."""
    if lot.exists(kind, name, adapter.namespace) or (kind == "Secret" and is_issued(name, adapter, lot)):
        return
    if named := lot.named(kind, name):
        _settle(named[0], adapter, lot, "where the pods that need it run")
    elif not optional:
        lot.add_note(
            adapter.workload,
            f"its pods need the {kind} {name}, which is not among these objects: make sure that it is in {adapter.namespace}",
        )


def _settle_bindings(adapters: list[AdapterWorkload], lot: ObjectSet) -> None:
    """Let bindings of the roles that prometheus-adapter needs name its account where it is."""
    by_account = {adapter.account: adapter for adapter in sorted(adapters, key=lambda adapter: adapter.is_known)}
    places = {(adapter.account, adapter.namespace) for adapter in adapters}
    for binding in lot.of_kind("RoleBinding", "ClusterRoleBinding"):
        role = get_mapping(binding, "roleRef")
        kind, name = text(role.get("kind")), text(role.get("name"))
        is_own = is_known(kind, name, lot.named(kind, name))
        for subject in get_items(binding, "subjects"):
            account, before = text(subject.get("name")), text(subject.get("namespace"))
            adapter = by_account.get(account)
            if subject.get("kind") != "ServiceAccount" or adapter is None:
                continue
            changed = (account, before) not in places and _correct_subject(binding, subject, adapter, lot, is_own=is_own)
            if binding.get("kind") == "RoleBinding" and (changed or before == adapter.namespace):
                _place_binding(binding, adapter, lot, is_own=is_own, changed=changed)


def _correct_subject(binding: Json, subject: Json, adapter: AdapterWorkload, lot: ObjectSet, *, is_own: bool) -> bool:
    """Whether the account of ``subject`` was meant to be that of ``adapter``; if so, it names the namespace of that."""
    before = text(subject.get("namespace"))
    belongs_to_others = lot.exists("ServiceAccount", adapter.account, before) or lot.is_needed("ServiceAccount", adapter.account, before)
    if belongs_to_others or (adapter.account == "default" and not is_own):
        return False
    where = f"in {before}" if before else "without a namespace"
    if not (is_own and adapter.is_known):
        role = text(get_mapping(binding, "roleRef").get("name"))
        why = f"no APIService names {adapter.namespace}" if is_own else f"the role {role} is none that prometheus-adapter is known to need"
        lot.refuse(
            binding,
            f"its subject ServiceAccount {adapter.account} is {where}, and {adapter.title} runs as an account of that name "
            f"in {adapter.namespace}. It was not changed, since {why}: name the account in "
            f"{adapter.namespace} if the rights are meant for it",
        )
        return False
    subject["namespace"] = adapter.namespace
    lot.add_note(
        binding, f"its subject ServiceAccount {adapter.account} is in {adapter.namespace} now{f', not in {before}' if before else ''}"
    )
    return True


def _place_binding(binding: Json, adapter: AdapterWorkload, lot: ObjectSet, *, is_own: bool, changed: bool) -> None:
    """Give a RoleBinding without a namespace, and its Role, that of its role."""
    role = get_mapping(binding, "roleRef")
    name, current = text(role.get("name")), namespace_of(binding)
    namespace = "kube-system" if name == READER else adapter.namespace
    if not current and is_own and adapter.is_known:
        lot.add_namespace(binding, namespace, "where its role is")
        for manifest in lot.named("Role", name) if role.get("kind") == "Role" else ():
            if not namespace_of(manifest):
                lot.add_namespace(manifest, namespace, "where its binding is")
    elif changed and current not in ("", namespace, adapter.namespace):
        lot.add_note(
            binding,
            f"it grants rights in {current} only, and the account is in {adapter.namespace} now: "
            "if its role is about the namespace of the account, move both",
        )


def _check_services(adapters: list[AdapterWorkload], lot: ObjectSet) -> None:
    """Note APIServices that name a Service of prometheus-adapter in a namespace in which it is not."""
    by_service = {name: adapter for adapter in reversed(adapters) for name in adapter.services}
    for manifest in filter(is_metrics_api, lot.objects):
        reference = get_mapping(get_mapping(manifest, "spec"), "service")
        name, before = text(reference.get("name")), text(reference.get("namespace"))
        adapter = by_service.get(name)
        where = f"in {before}" if before else "without a namespace"
        if adapter is not None and before != adapter.namespace and not lot.exists("Service", name, before):
            lot.refuse(
                manifest,
                f"it names the Service {name} {where}, where none is among these objects; "
                f"{adapter.title} has one in {adapter.namespace}. It was not changed: write namespace: {adapter.namespace} if that "
                "workload is meant to serve these metrics",
            )


def _note_new_namespaces(adapters: list[AdapterWorkload], lot: ObjectSet) -> None:
    """Note a namespace that objects were given and that these objects do not make."""
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
