"""The keys of the description. A person writes only what differs from the defaults."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated

from gpuscaler.generating.description.addresses import ANYWHERE, CIDR
from gpuscaler.model.offerings import ON_DEMAND, SPOT
from gpuscaler.model.pools import DEFAULT_DOLLARS
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.model.taints import Taint
from gpuscaler.settings.fields.kinds import FLAG, MEMORY, amount, choice, count, dns_label, list_of, names, text
from gpuscaler.settings.fields.pool_kinds import LABELS, TAINTS
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext

#: The tools whose files are written, by cloud; the first is the default.
TOOLS: Mapping[str, tuple[str, ...]] = {"aws": ("eksctl", "kops", "terraform"), "azure": ("terraform",)}
EKSCTL, KOPS, TERRAFORM = "eksctl", "kops", "terraform"
MANAGED, SELF_MANAGED = NODES = ("managed", "self-managed")
POD_IDENTITY, IRSA = IDENTITIES = ("pod-identity", "irsa")
WORKLOADS = ("training", "gang", "notebook", "inference")
_MACHINES = count(0, "a number of machines, 0 or more")
_DISK = Field("size of the machines' root volume")
#: Names that eksctl, kOps (with a domain), Terraform and AKS accept.
_CLUSTER_NAME = "[A-Za-z0-9]([A-Za-z0-9.-]{0,98}[A-Za-z0-9])?"
#: Architectures of machines, by their names in Kubernetes.
AMD64, ARM64 = ARCHITECTURES = ("amd64", "arm64")
GIB = 2**30
#: A registry, which may have a port, and a path: `a:b` alone would be an image with a tag.
_IMAGE = r"([a-z0-9][a-z0-9.-]*(:[0-9]{1,5})?/)?[a-z0-9][a-z0-9._-]*(/[a-z0-9][a-z0-9._-]*)*"
_HOST_PART = "[A-Za-z0-9]([A-Za-z0-9-]{0,61}[A-Za-z0-9])?"
#: The host is a name or an IPv4 or IPv6 address: its parts become the values of labels.
_URL = rf"https?://({_HOST_PART}(\.{_HOST_PART})*|\[[0-9A-Fa-f:.]+\])(:[0-9]{{1,5}})?(/[!-~]*)?"


def _line(expected: str) -> Kind:
    """Text of one line that is printable: neither a terminal nor a parser takes a part of it for something else."""
    kind = text(expected)

    def read(at: Cursor, context: ReadContext) -> str | None:
        value: str | None = kind.read(at, context)
        if value is not None and not value.isprintable():
            at.wrong(f"{expected}: one line of printable characters")
        return value

    return replace(kind, read=read)


class ClusterSettings(Group, frozen=True, gc=False):
    """The mapping ``cluster``."""

    name: Annotated[
        str,
        text("the cluster's name", pattern=_CLUSTER_NAME, otherwise=": letters, digits, '-' and '.'"),
        Field("the cluster's name; with kOps with its domain", required="the cluster's name; add name: …"),
    ] = ""
    version: Annotated[
        str,
        text('a version of Kubernetes such as "1.35"', pattern=r"1\.[0-9]{2}", otherwise=", quoted"),
        Field("the version of Kubernetes"),
    ] = "1.35"
    region: Annotated[
        str,
        text("a region such as us-east-1 or eastus"),
        Field("the region (on Azure the location)", required="a region; add region: …"),
    ] = ""
    zones: Annotated[
        tuple[str, ...],
        names("zone", "list of text"),
        Field(
            "the zones that machines are bought in; on Azure `1`, `2`, `3`", default="on AWS `a` and `b` of the region; on Azure no zones"
        ),
    ] = ()
    create: Annotated[
        bool,
        FLAG,
        Field("whether the files create the cluster itself, too. If not, they add groups to one that exists; files of kOps always do"),
    ] = True
    private: Annotated[bool, FLAG, Field("whether nodes have private addresses only")] = True
    api_access: Annotated[
        tuple[str, ...],
        list_of(CIDR, "list of ranges of addresses", distinct=True, minItems=1),
        Field(
            "the public addresses that reach the API server of a new cluster, such as `203.0.113.7/32`; `0.0.0.0/0` is the whole internet",
            default="with Terraform on EKS none; with eksctl and on AKS the whole internet",
        ),
    ] = ()
    account: Annotated[
        str,
        text("an AWS account's id, quoted", pattern="[0-9]{12}", otherwise=": 12 digits"),
        Field("the AWS account's id", default="a variable, or a place to fill in"),
    ] = ""
    subscription: Annotated[
        str,
        text("the id of a subscription", pattern="[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"),
        Field("the Azure subscription's id", default="a variable"),
    ] = ""
    resource_group: Annotated[
        str,
        text("the name of a resource group", pattern="[A-Za-z0-9_().-]{0,89}[A-Za-z0-9_()-]"),
        Field("the Azure resource group of the cluster", default="the cluster's name with `-rg`"),
    ] = ""


class GeneralSettings(Group, frozen=True, gc=False):
    """The mapping ``general``: machines without GPUs for everything else, above all for gpuscaler itself."""

    types: Annotated[
        tuple[str, ...],
        names("instance type", "list of text"),
        Field("instance types without GPUs", default="on AWS `m6i.large`, on Azure `Standard_D4s_v5`"),
    ] = ()
    min: Annotated[int, count(1, "a number of machines, 1 or more"), Field("minimum number of machines")] = 2
    max: Annotated[int, count(1, "a number of machines, 1 or more"), Field("maximum number of machines")] = 4
    disk: Annotated[int, MEMORY, _DISK] = 50 * GIB

    def check(self, at: Cursor) -> None:
        if self.min > self.max:
            at.add_problem(f"saw min {self.min} above max {self.max}, expected min ≤ max; change one")


class GpuPoolSettings(Group, frozen=True, gc=False):
    """An entry of ``gpu_pools``."""

    name: Annotated[
        str,
        dns_label("a pool's name"),
        Field("name of the pool; names of groups begin with it", required="a name; add name: …"),
    ] = ""
    types: Annotated[
        tuple[str, ...],
        names("instance type", "list of text"),
        Field("instance types", default="those with `gpus` and `gpu_memory`: the cheapest of each GPU model that the region sells"),
    ] = ()
    gpus: Annotated[int, count(1, "a number of GPUs, 1 or more"), Field("GPUs of a machine", default="from `types`")] = 0
    gpu_memory: Annotated[int, MEMORY, Field("least memory of a GPU as its maker states it, such as `80G`", default="any amount")] = 0
    arch: Annotated[
        str,
        choice(ARCHITECTURES),
        Field("architecture of the machines that `gpus` chooses; `types` have their own. Images must be built for it"),
    ] = AMD64
    markets: Annotated[
        tuple[str, ...],
        list_of(choice((SPOT, ON_DEMAND)), "list of `spot` and `on-demand`", distinct=True, minItems=1),
        Field("the markets; each gets groups of its own, so that gpuscaler fails over between them", default="`[spot, on-demand]`"),
    ] = (SPOT, ON_DEMAND)
    zones: Annotated[tuple[str, ...], names("zone", "list of text"), Field("the zones", default="`zones` of the cluster")] = ()
    min: Annotated[
        int,
        _MACHINES,
        Field("minimum number of machines of each group, which is one type, market and zone. They run, and are paid for, at all times"),
    ] = 0
    max: Annotated[int, count(1, "a number of machines, 1 or more"), Field("maximum number of machines of each group")] = 10
    labels: Annotated[Mapping[str, str], LABELS, Field("more labels of the nodes", default="none")] = {}
    taints: Annotated[
        tuple[Taint, ...], TAINTS, Field("taints of the nodes, next to gpuscaler's own", default="`nvidia.com/gpu=present:NoSchedule`")
    ] = (Taint("nvidia.com/gpu", "present", "NoSchedule"),)
    disk: Annotated[int, MEMORY, _DISK] = 200 * GIB
    teams: Annotated[tuple[str, ...], names("team", "list of text"), Field("the teams that may use the pool", default="all")] = ()

    def check(self, at: Cursor) -> None:
        if isinstance(at.entry.value, dict) and not self.types and not self.gpus and not at.has("types") and not at.has("gpus"):
            at.add_problem("saw neither types nor gpus, expected one; add types: […], or gpus: N with gpu_memory: 80G")
        if self.types and (self.gpus or self.gpu_memory):
            at.add_problem("saw types beside gpus or gpu_memory, expected one way to choose; remove types, or the others")
        if self.types and at.has("arch"):
            at.descend("arch").add_problem("saw arch beside types, which have their own architecture, expected it with gpus; remove arch")
        if self.min > self.max:
            at.add_problem(f"saw min {self.min} above max {self.max}, expected min ≤ max; change one")


class TeamSettings(Group, frozen=True, gc=False):
    """An entry of ``teams``."""

    name: Annotated[str, dns_label("a team's name"), Field("name of the team", required="a name; add name: …")] = ""
    namespace: Annotated[str, dns_label("a namespace"), Field("its namespace", default="its name")] = ""
    gpus: Annotated[
        int | None, count(0, "a number of GPUs, 0 or more"), Field("GPUs that its pods may request at a time", default="no quota")
    ] = None
    group: Annotated[
        str,
        _line("a group of users"),
        Field(
            "group of users that may create workloads there; on Azure the object id of a group of Microsoft Entra ID",
            default="no RoleBinding is written",
        ),
    ] = ""


class ControllerSettings(Group, frozen=True, gc=False):
    """The mapping ``controller``: gpuscaler itself."""

    namespace: Annotated[str, dns_label("a namespace"), Field("its namespace")] = "gpuscaler"
    image: Annotated[
        str,
        text("an image without its tag", pattern=_IMAGE),
        Field("the image that you built and pushed, without its tag"),
    ] = "registry.example.com/gpuscaler"
    identity: Annotated[str, choice(IDENTITIES), Field("how it gets its rights on EKS; on AKS it is always workload identity")] = (
        POD_IDENTITY
    )
    gpus: Annotated[
        int | None, count(0, "a number of GPUs, 0 or more"), Field("limit on GPUs over all pools", default="the sum over all groups")
    ] = None
    dollars_per_hour: Annotated[
        float | None,
        amount("number ≥ 0", "dollars per hour, 0 or more"),
        Field("limit on the sum of all prices", default=f"{DEFAULT_DOLLARS:g}"),
    ] = None


class DescriptionSettings(Group, frozen=True, gc=False):
    """The keys of the description itself."""

    cloud: Annotated[str, choice(tuple(TOOLS)), Field("the cloud", required="aws or azure; add cloud: …")] = ""
    tool: Annotated[
        str, choice((EKSCTL, KOPS, TERRAFORM)), Field("the tool that applies the files", default="eksctl on AWS, terraform on Azure")
    ] = ""
    cluster: Annotated[ClusterSettings, Field("[the cluster](#cluster)", required="the cluster; add cluster: …")] = ClusterSettings()
    nodes: Annotated[
        str, choice(NODES), Field("whether EKS manages the node groups; agent pools of AKS and groups of kOps have no choice")
    ] = MANAGED
    general: Annotated[GeneralSettings, Field("[machines without GPUs](#general)")] = GeneralSettings()
    gpu_pools: Annotated[
        tuple[GpuPoolSettings, ...], Field("[the GPU pools](#gpu_pools)", required="at least one pool; add gpu_pools: …")
    ] = ()
    teams: Annotated[tuple[TeamSettings, ...], Field("[the teams](#teams)", default="none")] = ()
    controller: Annotated[ControllerSettings, Field("[gpuscaler itself](#controller)")] = ControllerSettings()
    prometheus: Annotated[
        str,
        text("the URL of Prometheus, such as http://prometheus.monitoring.svc:9090", pattern=_URL),
        Field("Prometheus, for autoscaling by GPU metrics", default="no HorizontalPodAutoscaler and no metrics API are written"),
    ] = ""
    workloads: Annotated[
        tuple[str, ...],
        list_of(choice(WORKLOADS), "list of `training`, `gang`, `notebook` and `inference`", distinct=True),
        Field("the examples of workloads that are written", default="all"),
    ] = WORKLOADS

    def check(self, at: Cursor) -> None:
        if self.cloud == "azure" and set(self.cluster.api_access) - {ANYWHERE} and not self.cluster.private:
            at.descend("cluster", "api_access").add_problem(
                "saw addresses beside private: false, where nodes have public addresses that AKS would keep from the API server, expected "
                "private nodes; remove private"
            )
