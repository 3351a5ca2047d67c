"""Groups of an AWS account as checks see them, checks that say what was not read, and commands of the AWS CLI."""

import json
import shlex
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from math import isfinite
from typing import Any

from gpuscaler.doctor.checks.checking import Check, in_part
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import ACCOUNT, Evidence
from gpuscaler.doctor.findings import Finding, Unchecked

GROUP, TEMPLATE, TYPE, OFFERING = "aws/AutoScalingGroup", "aws/LaunchTemplateVersion", "aws/InstanceType", "aws/InstanceTypeOffering"
CA = "k8s.io/cluster-autoscaler/"
ENABLED = f"{CA}enabled"
#: Lifecycle states of machines that are in use.
_IN_SERVICE = "InService"


@dataclass(frozen=True, slots=True)
class Option:
    """An instance type that a group may launch."""

    document: Document

    @property
    def instance_type(self) -> str:
        return self.document.text("InstanceType")

    @property
    def known(self) -> bool:
        """Whether the region has this type, as far as that could be read."""
        return self.document.flag("Known")

    @property
    def vcpus(self) -> int:
        return _whole(self.document.number("VCpus"))

    @property
    def gpus(self) -> int:
        return _whole(self.document.number("Gpus"))

    @property
    def model(self) -> str:
        return self.document.text("GpuModel")

    @property
    def markets(self) -> tuple[str, ...]:
        return self.document.texts("Markets")

    @property
    def zones(self) -> frozenset[str] | None:
        """The zones that offer the type; None if unknown."""
        return frozenset(self.document.texts("Zones")) if isinstance(self.document.value("Zones"), list) else None


@dataclass(frozen=True, slots=True)
class AwsGroup:
    """An Auto Scaling group."""

    document: Document

    @property
    def name(self) -> str:
        return self.document.text("AutoScalingGroupName")

    @property
    def region(self) -> str:
        return self.document.text("Region")

    @property
    def title(self) -> str:
        return f"AutoScalingGroup {self.region}/{self.name}"

    @property
    def key(self) -> tuple[str, str]:
        return self.region, self.name

    @property
    def scaled(self) -> bool:
        """Whether gpuscaler scales it."""
        return self.document.flag("Scaled")

    @property
    def member(self) -> bool:
        """Whether nodes of the cluster are among its machines."""
        return self.document.flag("Member")

    @property
    def tags(self) -> dict[str, str]:
        return self.document.pairs("Tags")

    @property
    def zones(self) -> tuple[str, ...]:
        return tuple(dict.fromkeys(self.document.texts("AvailabilityZones")))

    @property
    def options(self) -> tuple[Option, ...]:
        return tuple(Option(part) for part in self.document.parts("Options"))

    @property
    def incomplete(self) -> str:
        """Why its instance types are not known."""
        return self.document.text("Incomplete")

    @property
    def has_gpus(self) -> bool:
        return any(option.gpus > 0 for option in self.options)

    @property
    def suspended(self) -> tuple[str, ...]:
        return self.document.texts("Suspended")

    @property
    def managed(self) -> bool:
        """Whether it belongs to a managed node group of EKS, which changes it as it likes."""
        return "eks:nodegroup-name" in self.tags

    @property
    def markets(self) -> frozenset[str]:
        return frozenset(market for option in self.options for market in option.markets)

    def size(self, field: str) -> int:
        """``MinSize``, ``MaxSize`` or ``DesiredCapacity``."""
        return _whole(self.document.number(field))

    @property
    def machines(self) -> tuple[Document, ...]:
        """Its machines in service."""
        return tuple(item for item in self.document.parts("Instances") if item.text("LifecycleState") == _IN_SERVICE)

    def command(self, verb: str, *options: str) -> str:
        """A command of the CLI about the group: ``suspend-processes --scaling-processes Launch``."""
        return aws("autoscaling", verb, "--auto-scaling-group-name", self.name, *options, region=self.region)

    def tag_command(self, tags: Mapping[str, str]) -> str:
        """The command that sets ``tags``."""
        entries = [{**self._tag(key), "Value": value, "PropagateAtLaunch": True} for key, value in tags.items()]
        return aws("autoscaling", "create-or-update-tags", "--tags", _json(entries), region=self.region)

    def untag_command(self, key: str) -> str:
        """The command that removes the tag ``key``."""
        return aws("autoscaling", "delete-tags", "--tags", _json([self._tag(key)]), region=self.region)

    def _tag(self, key: str) -> dict[str, Any]:
        # Not the CLI's shorthand: a comma in a name would begin another field.
        return {"ResourceId": self.name, "ResourceType": "auto-scaling-group", "Key": key}

    def mixed_command(self, changes: Mapping[str, str | None]) -> str:
        """The command that changes the distribution of a mixed group; None leaves a field out."""
        policy = dict(self.document.part("MixedInstancesPolicy").data)
        distribution = {**policy.get("InstancesDistribution", {}), **changes}
        policy["InstancesDistribution"] = {key: value for key, value in distribution.items() if value is not None}
        # AWS describes a template by both its id and its name, and accepts one of them only.
        return self.command("update-auto-scaling-group", "--mixed-instances-policy", _json(_with_one_name(policy)))


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def _whole(number: float | None) -> int:
    return int(number) if number is not None and isfinite(number) else 0


def _with_one_name(value: Any) -> Any:
    if isinstance(value, Mapping):
        both = "LaunchTemplateId" in value and "LaunchTemplateName" in value
        return {key: _with_one_name(item) for key, item in value.items() if not (both and key == "LaunchTemplateName")}
    return [_with_one_name(item) for item in value] if isinstance(value, list) else value


def aws(service: str, verb: str, *options: str, region: str = "") -> str:
    """A complete command of the AWS CLI."""
    words = ["aws", service, verb, *options, *(["--region", region] if region else [])]
    return " ".join(shlex.quote(word) for word in words)


def groups_of(evidence: Evidence) -> Iterator[AwsGroup]:
    """All groups of the account's regions."""
    return map(AwsGroup, evidence.of(GROUP))


def scaled_groups(evidence: Evidence) -> Iterator[AwsGroup]:
    """The groups that gpuscaler scales."""
    return (group for group in groups_of(evidence) if group.scaled)


def settings_of(evidence: Evidence) -> Document:
    """The part of the run file about the account."""
    return next(iter(evidence.of("aws/Settings")), Document({}))


def aws_check(
    id: str,  # noqa: A002 - as in Check
    title: str,
    kinds: tuple[str, ...],
    find: Callable[[Evidence], Iterable[Finding | Unchecked]],
    *,
    types: bool = False,
) -> Check:
    """A check of groups and of ``kinds``, which says what of it could not be read, and looks at the rest.

    With ``types`` it looks at the instance types of groups, too. What it looks at in launch templates is unknown of a group that could not
    be understood.
    """
    needed = (GROUP, *kinds, *((TEMPLATE, TYPE) if types else ()))

    def partly(evidence: Evidence) -> Iterator[Finding | Unchecked]:
        for kind in needed:
            yield from in_part(id, title, evidence, kind)
        for group in groups_of(evidence) if TEMPLATE in needed else ():
            if group.incomplete and (group.scaled or group.member):
                yield Unchecked(id, f"{title} of {group.title}", group.incomplete)
        yield from find(evidence)

    return Check(id, title, (ACCOUNT,), partly)
