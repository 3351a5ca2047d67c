"""What each team may do: its quota, its rights, and which pools its pods may use."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.description.resolved import EXPORTER_NAMESPACE, POOL_TAINT, Description
from gpuscaler.generating.description.settings import TeamSettings
from gpuscaler.generating.kubernetes.members import how_members_join
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, objects_file

#: Value of the label ``gpu-pool`` of namespaces whose pods may run in the pools of all teams.
ALL_POOLS: Final = "all"
#: What NVIDIA's runtime reads to mount GPUs into a container; by default also where the pod or its image sets it.
_VISIBLE: Final = "NVIDIA_VISIBLE_DEVICES"
#: Classes of the system's own pods, which come before everything else.
_SYSTEM_CLASSES: Final = ("system-cluster-critical", "system-node-critical")


def team_files(description: Description) -> Iterable[GeneratedFile]:
    documents = tuple(_documents(description))
    if documents:
        yield objects_file(
            "kubernetes/teams.yaml",
            "quotas of GPUs, rights of the teams, and which namespaces may use the pools of some teams",
            documents,
            edit="; ".join(filter(None, (how_members_join(description), _how_others_get_in(description)))),
        )


def _how_others_get_in(description: Description) -> str:
    if not any(description.pool_teams.values()):
        return ""
    return (
        f"give namespaces whose DaemonSets must run on every node, such as log collectors, the label {POOL_TAINT}={ALL_POOLS}, since the "
        "policy refuses their pods otherwise"
    )


def _documents(description: Description) -> Iterator[Tree]:
    namespaces = description.team_namespaces
    for team in description.teams:
        if team.gpus is not None:
            yield _quota(team, namespaces[team.name], dict.fromkeys(_resources(description), str(team.gpus)))
        yield _no_system_classes(namespaces[team.name])
        if team.group:
            yield _binding(team, namespaces[team.name])
    for pool, teams in description.pool_teams.items():
        if teams:
            yield from _policy(pool, [namespaces[team] for team in teams])


def _resources(description: Description) -> list[str]:
    """Return the names of the GPUs that pods request, of each maker."""
    return list(dict.fromkeys(f"requests.{group.instance_type.gpu_manufacturer}.com/gpu" for group in description.groups))


def _quota(team: TeamSettings, namespace: str, hard: dict[str, str]) -> Tree:
    return because(
        f"The team {team.name} has {team.gpus} GPUs at most at a time. The API server refuses further pods, so they are never pending and "
        "buy nothing.",
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "gpus", "namespace": namespace},
            "spec": {
                "hard": because(
                    "A quota of an extended resource has this prefix: Kubernetes supports no other one for GPUs. It counts pending pods, "
                    "too.",
                    hard,
                )
            },
        },
    )


def _no_system_classes(namespace: str) -> Tree:
    return because(
        "Kubernetes lets pods of any namespace have the priority of its own components. With it, they would push off everything else, "
        "network and device plugins included.",
        {
            "apiVersion": "v1",
            "kind": "ResourceQuota",
            "metadata": {"name": "no-system-priority", "namespace": namespace},
            "spec": {
                "hard": {"pods": "0"},
                "scopeSelector": because(
                    "The quota counts pods of these classes only.",
                    {"matchExpressions": [{"scopeName": "PriorityClass", "operator": "In", "values": list(_SYSTEM_CLASSES)}]},
                ),
            },
        },
    )


def _binding(team: TeamSettings, namespace: str) -> Tree:
    return because(
        f"Members of the group may create workloads in the namespace of the team {team.name}, and nowhere else.",
        {
            "apiVersion": "rbac.authorization.k8s.io/v1",
            "kind": "RoleBinding",
            "metadata": {"name": "team", "namespace": namespace},
            "roleRef": because(
                "Kubernetes' built-in role for people who run workloads. It can change neither quotas nor roles, so a team cannot raise "
                "its own limits. A RoleBinding restricts it to this namespace.",
                {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "edit"},
            ),
            "subjects": because(
                "The group as your identity provider names it.",
                [{"apiGroup": "rbac.authorization.k8s.io", "kind": "Group", "name": team.group}],
            ),
        },
    )


def _policy(pool: str, namespaces: list[str]) -> Iterator[Tree]:
    """Yield the policy that keeps pods of others off the nodes of a pool, and its binding.

    Only two ways lead there: a toleration of the pool's taint, and a node's name in the pod, which skips the scheduler. Both are closed
    whatever the pod requests, since a pod without any request sees the GPUs of its node if its image sets NVIDIA_VISIBLE_DEVICES.
    """
    name = f"{POOL_TAINT}-{pool}"
    named = f"t.key == '{POOL_TAINT}' && (t.?operator.orValue('Equal') != 'Equal' || t.?value.orValue('') == '{pool}')"
    opens = f"t.?effect.orValue('') in ['', 'NoSchedule'] && (t.?key.orValue('') == '' || ({named}))"
    # What a pod had before must not keep it from being changed otherwise: finalizers, above all, could not be removed any more.
    new = "oldObject == null || !oldObject.spec.?tolerations.orValue([]).exists(old, old == t)"
    admitted = f"the pool {pool} is for the namespaces {', '.join(namespaces)}"
    yield because(
        f"The nodes of the pool {pool} have the taint {POOL_TAINT}={pool}, which keeps pods without a toleration off. Anyone can write a "
        "toleration, so this policy admits it only in the namespaces of the pool's teams. The API server itself evaluates it; nothing has "
        "to be installed.",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "failurePolicy": because("If the expression cannot be evaluated, the pod is refused.", "Fail"),
                "matchConstraints": {
                    "namespaceSelector": because(
                        "Everything but the teams of the pool, kube-system with the device plugin, and the exporter of GPU metrics. Give "
                        f"the label {POOL_TAINT}={ALL_POOLS} to other namespaces whose pods must run on every node, such as those of log "
                        "collectors. Teams cannot set labels of namespaces.",
                        {
                            "matchExpressions": [
                                {
                                    "key": "kubernetes.io/metadata.name",
                                    "operator": "NotIn",
                                    "values": [*namespaces, "kube-system", EXPORTER_NAMESPACE],
                                },
                                {"key": POOL_TAINT, "operator": "NotIn", "values": [ALL_POOLS]},
                            ]
                        },
                    ),
                    "resourceRules": because(
                        "Pods are checked when they are created and when they change: tolerations, and containers for debugging, can be "
                        "added later.",
                        [
                            {
                                "apiGroups": [""],
                                "apiVersions": ["v1"],
                                "operations": ["CREATE", "UPDATE"],
                                "resources": ["pods", "pods/ephemeralcontainers"],
                            }
                        ],
                    ),
                },
                "matchConditions": because(
                    "Kubelets show the API server the static pods of their own node, which name it.",
                    [{"name": "no-kubelet", "expression": "!('system:nodes' in request.userInfo.groups)"}],
                ),
                "validations": [
                    because(
                        "Refused is a toleration of the pool's taint, and one without a key, which tolerates everything.",
                        _validation(
                            f"!object.spec.?tolerations.orValue([]).exists(t, ({opens}) && ({new}))",
                            f"{admitted}; remove the toleration of {POOL_TAINT}, or of everything",
                        ),
                    ),
                    because(
                        "A pod that names its node skips the scheduler, and with it taints of the effect NoSchedule.",
                        _validation(
                            "request.operation != 'CREATE' || object.spec.?nodeName.orValue('') == ''",
                            f"{admitted}; remove spec.nodeName, and choose nodes by a nodeSelector",
                        ),
                    ),
                    because(
                        "The device plugin sets this variable to the GPUs that a pod requested. Set by the pod, it replaces them with GPUs "
                        "of others on the same node, also in pools that everyone may use.",
                        _validation(
                            " && ".join(map(_sees_no_more, ("containers", "initContainers", "ephemeralContainers"))),
                            f"remove the variable {_VISIBLE}; request GPUs in the limits of the container instead",
                        ),
                    ),
                ],
            },
        },
    )
    yield because(
        "A policy without a binding has no effect.",
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name},
            "spec": {"policyName": name, "validationActions": because("Refuse, rather than warn.", ["Deny"])},
        },
    )


def _sees_no_more(containers: str) -> str:
    """Return the expression that no container shows itself GPUs: `none` and `void` are the values that show fewer.

    Variables of a pod that exists cannot change, except that containers for debugging are added.
    """
    shown = f"e.name == '{_VISIBLE}' && (has(e.valueFrom) || !(e.?value.orValue('') in ['', 'none', 'void']))"
    found = f"object.spec.?{containers}.orValue([]).exists(c, c.?env.orValue([]).exists(e, {shown}))"
    return f"!{found}" if containers == "ephemeralContainers" else f"(request.operation != 'CREATE' || !{found})"


def _validation(expression: str, message: str) -> Tree:
    return {"expression": expression, "message": message, "reason": "Forbidden"}
