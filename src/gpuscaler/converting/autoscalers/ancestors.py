"""The flags of OpenAI's kubernetes-ec2-autoscaler and of its descendant for acs-engine.

Source: main.py and README.md of openai/kubernetes-ec2-autoscaler and of wbuchwalter/Kubernetes-acs-engine-autoscaler, all versions of 2016
to 2018, read in November 2026.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuscaler.converting.autoscalers import clouds
from gpuscaler.converting.autoscalers.draft import (
    NOT_NEEDED,
    OWN,
    SAME,
    UNSUPPORTED,
    Answer,
    Draft,
    Row,
    UnusableError,
    answers_by_name,
    seconds,
    whole,
)
from gpuscaler.converting.autoscalers.flags import Flag, effective

#: Flags without a value.
BOOLEANS: Final = frozenset({"no-scale", "no-maintenance", "dry-run", "debug", "v", "verbose"})

_ANSWERS: Final = (
    Row(NOT_NEEDED, "the API server is found as in any pod", "kubeconfig kubeconfig-private-key client-private-key ca-private-key"),
    Row(
        NOT_NEEDED,
        "there are no static keys: the ServiceAccount has an identity of the cloud",
        "aws-access-key aws-secret-key azure-client-id azure-client-secret azure-tenant-id service-principal-app-id "
        "service-principal-secret service-principal-tenant-id",
    ),
    Row(
        NOT_NEEDED,
        "no template is deployed again to scale; machines are bought and ended one by one",
        "acs-deployment template-file template-file-url parameters-file parameters-file-url container-service-name",
    ),
    Row(NOT_NEEDED, "an offering that fails is not used for a time that grows with each failure", "azure-slow-scale-classes"),
    Row(OWN, "log lines are JSON on standard error; log.level sets how much is logged", "v verbose debug"),
    Row(
        OWN,
        "pods that are pending cause a plan at once; pace.resync is the longest time between two plans",
        "sleep",
    ),
    Row(UNSUPPORTED, "pods are considered wherever they are", "pod-namespace namespace"),
    Row(
        UNSUPPORTED,
        "no machines are bought beyond those that pods need; spare of a pool keeps empty machines or unused GPUs all the time",
        "over-provision",
    ),
    Row(NOT_NEEDED, "a node is removed where its pods fit elsewhere for less, whatever its utilization is", "drain-utilization"),
    Row(UNSUPPORTED, "groups are found by tags of the account, not by a label of nodes", "scale-label"),
    Row(
        UNSUPPORTED,
        "there are metrics for Prometheus and Events instead of messages",
        "slack-hook slack-bot-token datadog-api-key",
    ),
)
_BY_NAME: Final[Mapping[str, Answer]] = answers_by_name(_ANSWERS)
_SPARES: Final = (
    "up to five idle machines of a type stayed for this time; here a machine ends after its idle_after, and spare of a pool keeps empty "
    "machines"
)


def carry_openai(flags: list[Flag], draft: Draft, places: clouds.Places) -> None:
    """Write the flags of OpenAI's autoscaler into ``draft``, for AWS."""
    flags = _effective(flags, draft)
    by_name = {flag.name: flag for flag in flags}
    regions = next((by_name[name].value for name in ("regions", "aws-regions") if name in by_name), "")
    cluster = by_name["cluster-name"].value if "cluster-name" in by_name else ""
    clouds.set_aws(draft, cluster, regions.split(",") if regions else [places.variables.get("AWS_REGION", "us-west-1")])
    for flag in flags:
        if flag.name in ("regions", "aws-regions"):
            draft.carried(
                flag, f"aws.regions: {', '.join(draft.account['regions'])}", "all are used; price and capacity decide, not their order"
            )
        elif flag.name == "cluster-name":
            draft.carried(flag, f"aws.cluster: {cluster}", "its groups are found by the tag KubernetesCluster, as before")
        elif flag.name.startswith("azure-") and flag.name not in _BY_NAME:
            draft.answered(flag, Answer(UNSUPPORTED, "a run file is for one cloud: write another with cloud: azure for those machines"))
        else:
            _carry_one(flag, draft)
    # The version that also drives Azure calls the flag --aws-regions, and has defaults of its own.
    newest = "regions" not in by_name
    _carry_defaults(by_name, draft, idle_after="3300s" if newest else "1h")
    if newest and "max-scale-in-fraction" not in by_name:
        draft.every.setdefault("budgets", []).append({"nodes": "10%"})
        draft.carried("--max-scale-in-fraction, which is not set,", "a budget of 10 % of the machines of every pool at once, its default")
    if newest and "over-provision" not in by_name:
        draft.default("over-provision", "5", _BY_NAME["over-provision"])
    if "type-idle-threshold" not in by_name:
        draft.default("type-idle-threshold", "604800", Answer(UNSUPPORTED, _SPARES))
    clouds.finish(draft)


def _carry_defaults(by_name: Mapping[str, Flag], draft: Draft, *, idle_after: str) -> None:
    """Write the defaults of flags that are not set."""
    if "idle-threshold" not in by_name:
        draft.every["idle_after"] = idle_after
        draft.carried("--idle-threshold, which is not set,", f"idle_after: {idle_after} of every pool, its default")
    if "instance-init-time" not in by_name:
        draft.pace["register_timeout"] = "25m"
        draft.carried("--instance-init-time, which is not set,", "pace.register_timeout: 25m, its default; gpuscaler's own is 15m")


def _effective(flags: list[Flag], draft: Draft) -> list[Flag]:
    """The flags that count."""
    flags, overridden = effective(flags, dict.fromkeys(("v", "asgs"), str))
    for flag, by in overridden:
        draft.overridden(flag, by)
    return flags


def carry_acs(flags: list[Flag], draft: Draft, places: clouds.Places) -> None:
    """Write the flags of acs-engine's autoscaler into ``draft``, for Azure."""
    flags = _effective(flags, draft)
    by_name = {flag.name: flag for flag in flags}
    group = by_name["resource-group"].value if "resource-group" in by_name else ""
    clouds.set_azure(draft, places.first(("SUBSCRIPTION_ID", "AZURE_SUBSCRIPTION_ID"), clouds.UUID), _valid_group(group), "", "")
    for flag in flags:
        if flag.name == "resource-group":
            draft.carried(flag, f"resource_groups: {', '.join(draft.account['subscriptions'][0].get('resource_groups', []))}")
        elif flag.name == "ignore-pools":
            names = list(dict.fromkeys(name.strip() for name in flag.value.split(",") if name.strip()))
            draft.account["subscriptions"][0]["exclude"] = names
            draft.carried(flag, f"exclude: {', '.join(names)}")
        else:
            _carry_one(flag, draft)
    _carry_defaults(by_name, draft, idle_after="30m")
    if "spare-agents" not in by_name:
        draft.every["min"] = 1
        draft.carried("--spare-agents, which is not set,", "min: 1 of every pool, its default")
    if "over-provision" not in by_name:
        draft.default("over-provision", "5", _BY_NAME["over-provision"])
    draft.check(
        "pools of acs-engine in availability sets are not scaled, since only deploying a template again does that: move them to scale sets "
        "or to agent pools of AKS, and name those that no tag marks in pools of the subscription"
    )
    clouds.finish(draft)


def _valid_group(group: str) -> str:
    return group if clouds.RESOURCE_GROUP.fullmatch(group) else ""


def _carry_one(flag: Flag, draft: Draft) -> None:
    carry_flag = _CARRIED.get(flag.name)
    if carry_flag is None:
        draft.answered(flag, _BY_NAME.get(flag.name) or Answer(UNSUPPORTED, "gpuscaler does not know this flag of the program"))
    elif flag.is_placeholder:
        draft.check(f"the value of {flag} is filled in elsewhere, so it is not carried over")
    else:
        try:
            carry_flag(flag, draft)
        except UnusableError as error:
            draft.check(f"{flag} is not carried over: {error}")


def _every(key: str, read: Callable[[str], Any], text: str = "") -> Callable[[Flag, Draft], None]:
    def carry_flag(flag: Flag, draft: Draft) -> None:
        draft.every[key] = read(flag.value)
        draft.carried(flag, f"{key}: {draft.every[key]} of every pool", text)

    return carry_flag


def _register(flag: Flag, draft: Draft) -> None:
    draft.pace["register_timeout"] = seconds(flag.value, least=0.01)
    draft.carried(flag, f"pace.register_timeout: {draft.pace['register_timeout']}")


def _spares(flag: Flag, draft: Draft) -> None:
    draft.answered(flag, Answer(SAME, "no idle machines are kept for later") if whole(flag.value) == 0 else Answer(UNSUPPORTED, _SPARES))


def _fraction(flag: Flag, draft: Draft) -> None:
    try:
        percent = max(1, min(100, int(float(flag.value) * 100)))
    except (ValueError, OverflowError) as error:
        raise UnusableError("expected a share from 0 to 1") from error
    draft.every.setdefault("budgets", []).append({"nodes": f"{percent}%"})
    draft.carried(flag, f"a budget of {percent} % of the machines of every pool at once")


def _no_scale(flag: Flag, draft: Draft) -> None:
    draft.limits["machines_per_minute"] = 0
    draft.carried(flag, "limits.machines_per_minute: 0, so that nothing is bought")


def _no_maintenance(flag: Flag, draft: Draft) -> None:
    draft.every["budgets"] = [{"nodes": 0}]
    draft.carried(flag, "a budget of 0 machines of every pool", "machines that fail or that the cloud takes are still ended")


def _dry_run(flag: Flag, draft: Draft) -> None:
    draft.controller["dryRun"] = True
    draft.carried(flag, "controller.dryRun: true of the chart; without the chart, run gpuscaler run --dry-run")


_CARRIED: Final[Mapping[str, Callable[[Flag, Draft], None]]] = {
    "idle-threshold": _every("idle_after", seconds),
    "spare-agents": _every("min", whole, "that many machines of a pool stay"),
    "type-idle-threshold": _spares,
    "instance-init-time": _register,
    "max-scale-in-fraction": _fraction,
    "no-scale": _no_scale,
    "no-maintenance": _no_maintenance,
    "dry-run": _dry_run,
}
