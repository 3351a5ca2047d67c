"""What each team may do: its quota, its rights, and which pools its pods may use."""

from collections.abc import Iterable, Iterator

from gpuscaler.generating.description.resolved import POOL_TAINT, Description
from gpuscaler.generating.description.settings import TeamSettings
from gpuscaler.generating.kubernetes.members import how_members_join
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, yaml_file


def team_files(description: Description) -> Iterable[GeneratedFile]:
    documents = tuple(_documents(description))
    if documents:
        yield yaml_file(
            "kubernetes/teams.yaml",
            "quotas of GPUs, rights of the teams, and which namespaces may use the pools of some teams",
            documents,
            apply="kubectl apply --server-side --filename kubernetes/teams.yaml",
            edit=how_members_join(description),
        )


def _documents(description: Description) -> Iterator[Tree]:
    namespaces = description.team_namespaces
    for team in description.teams:
        if team.gpus is not None:
            yield _quota(team, namespaces[team.name], dict.fromkeys(_resources(description), str(team.gpus)))
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
    """Yield the policy that keeps pods of others from tolerating the pool's taint, and its binding.

    A pod whose toleration names no key tolerates everything, as DaemonSets for logs or metrics do. Such a pod is admitted unless it
    requests GPUs.
    """
    name = f"{POOL_TAINT}-{pool}"
    named = f"t.key == '{POOL_TAINT}' && (t.?operator.orValue('Equal') == 'Exists' || t.?value.orValue('') == '{pool}')"
    gpus = "c.?resources.?limits.orValue({}).exists(resource, resource.endsWith('.com/gpu'))"
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
                        "Everything but the teams of the pool, and kube-system, where the device plugin must run on these nodes.",
                        {
                            "matchExpressions": [
                                {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": [*namespaces, "kube-system"]}
                            ]
                        },
                    ),
                    "resourceRules": because(
                        "Pods are checked when they are created and when they change: tolerations can be added later.",
                        [{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["pods"]}],
                    ),
                },
                "variables": because(
                    "Whether the pod requests GPUs. DaemonSets for logs or metrics tolerate everything and request none; they stay "
                    "admitted.",
                    [{"name": "gpus", "expression": f"object.spec.containers.exists(c, {gpus})"}],
                ),
                "validations": [
                    because(
                        "Refused is a toleration that names the pool, and one that names no key in a pod with GPUs.",
                        {
                            "expression": (
                                "!object.spec.?tolerations.orValue([]).exists(t, "
                                f"has(t.key) && t.key != '' ? ({named}) : (t.?operator.orValue('Equal') == 'Exists' && variables.gpus))"
                            ),
                            "message": f"the pool {pool} is for the namespaces {', '.join(namespaces)}; "
                            f"remove the toleration of {POOL_TAINT}",
                            "reason": "Forbidden",
                        },
                    )
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
