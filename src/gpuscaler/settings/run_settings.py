"""Settings of ``gpuscaler run``: the policy, and the keys of a run file that a pools file does not have.

The tables of ``docs/reference/run-file.md`` are generated from these classes.
"""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from gpuscaler.model.overrides import PoolOverride
from gpuscaler.model.pools import Policy
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.clouds.aws import AwsSettings
from gpuscaler.settings.clouds.azure import AzureSettings
from gpuscaler.settings.clouds.simulated import Simulated
from gpuscaler.settings.fields.kinds import ADDRESS, DATE, FLAG, MEMORY, Flag, Wait, choice, count, dns_label, path, positive, text
from gpuscaler.settings.fields.table import Field, Fields, Group, ReadContext, values
from gpuscaler.settings.pools import read_overrides

#: Clouds that a file can name, and those that this version can drive.
CLOUDS = ("simulated", "aws", "azure")
DRIVEN = ("simulated", "aws", "azure")
#: Clouds whose pools come from an account, so that the entries of ``pools`` only change pools that are found there.
ACCOUNT_CLOUDS = ("aws", "azure")
LEVELS = ("debug", "info", "warning", "error")
#: How long the controller lets a call to a cloud take, in seconds.
LONGEST_CALL = 10.0

_CERTIFICATE, _KEY = path("the path of a certificate as PEM"), path("the path of a private key as PEM")


class PaceSettings(Group, frozen=True, gc=False):
    """How long the control loop waits, in seconds."""

    debounce: Annotated[Wait, Field("a plan is made when no pod has become unschedulable for this long")] = 0.2
    patience: Annotated[
        Wait,
        Field(
            "upper limit of `debounce`: a plan is made at most this long after the first pod has become unschedulable",
            type="duration ≥ `debounce`",
        ),
    ] = 0.6
    resync: Annotated[Wait, Field("the controller reconciles and plans at least this often")] = 10.0
    register_timeout: Annotated[Wait, Field("a machine that has not registered as a node within this time is ended")] = 900.0
    ready_timeout: Annotated[Wait, Field("a machine that has registered but does not show all its resources within this time is ended")] = (
        900.0
    )
    consolidate: Annotated[
        Wait,
        Field(
            "minimum time between two plans that check whether running pods would fit better on other nodes, which is the most expensive "
            "part of planning; idle machines are removed regardless"
        ),
    ] = 60.0

    def check(self, at: Cursor) -> None:
        if self.debounce > self.patience:
            saw = f"saw debounce {self.debounce:g} s above patience {self.patience:g} s"
            at.add_problem(f"{saw}, expected debounce not above patience; lower debounce or raise patience")


class ElectionSettings(Group, frozen=True, gc=False):
    """Leader election among several replicas; times in seconds."""

    enabled: Annotated[Flag, Field("set `false` only if a second copy can never run")] = True
    name: Annotated[str, dns_label("the name of a Lease such as gpuscaler"), Field("name of the Lease")] = "gpuscaler"
    lease: Annotated[Wait, Field("how long a copy keeps a lease that it does not renew", type="whole seconds as a duration")] = 15.0
    renew: Annotated[Wait, Field("a leader that could not renew its lease for this long stops leading", type="duration below `lease`")] = (
        10.0
    )
    retry: Annotated[Wait, Field("how often a copy renews the lease, or tries to get it", type="duration below `renew`")] = 2.0

    def check(self, at: Cursor) -> None:
        if not self.lease > self.renew > self.retry:
            saw = f"saw lease {self.lease:g} s, renew {self.renew:g} s, retry {self.retry:g} s"
            at.add_problem(f"{saw}, expected lease above renew above retry; raise lease or lower the others")
        elif self.lease != int(self.lease):
            at.descend("lease").wrong("whole seconds, which is how a Lease is written")
        elif self.lease - self.retry < LONGEST_CALL + 1:
            at.add_problem(
                f"saw lease {self.lease:g} s and retry {self.retry:g} s, expected at least {LONGEST_CALL + 1:g} s between them: "
                f"calls to a cloud take up to {LONGEST_CALL:g} s, and none starts that may outlast the lease; raise lease"
            )


class RateSettings(Group, frozen=True, gc=False):
    """The maximum number of requests to the API server, per second and at once."""

    qps: Annotated[float, positive("requests a second, above 0"), Field("requests a second, sustained")] = 200.0
    burst: Annotated[int, count(1, "a number of requests, 1 or more"), Field("requests at once")] = 300


class HttpSettings(Group, frozen=True, gc=False):
    """Where metrics and health are served, to all clients that can connect; an empty ``host`` means all addresses.

    ``certificate`` and ``key`` are paths of PEM files; without them there is no TLS.
    """

    enabled: Annotated[Flag, Field("whether metrics and health are served")] = True
    host: Annotated[
        str,
        ADDRESS,
        Field("address to listen on; without a host: all addresses, with port 0: a free port", key="address", into=("host", "port")),
    ] = ""
    port: int = 8080
    certificate: Annotated[
        str, _CERTIFICATE, Field("the certificate, as PEM; read again when it changes. Needs `key`", default="no TLS")
    ] = ""
    key: Annotated[str, _KEY, Field("the private key, as PEM. Needs `certificate`", default="no TLS")] = ""
    alive_within: Annotated[Wait, Field("`/healthz` fails if the control loop has not run for this long")] = 120.0

    def check(self, at: Cursor) -> None:
        for key, other in (("certificate", "key"), ("key", "certificate")):
            if at.has(key) and not at.has(other):
                at.add_problem(f"saw {key} without {other}, expected both or neither; add {other}")


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, is a loopback address."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class AuthenticatedSettings(Group, frozen=True, gc=False):
    """Where pages are served to clients with a token of the cluster and the right to read them; nowhere without a ``port``.

    An empty ``host`` means all addresses; ``certificate`` and ``key`` are paths of PEM files, and required, since clients send tokens.
    """

    host: Annotated[
        str,
        ADDRESS,
        Field("address to listen on; without a host: all addresses", required="one; add address: …", key="address", into=("host", "port")),
    ] = ""
    port: int | None = None
    certificate: Annotated[
        str, _CERTIFICATE, Field("the certificate, as PEM; read again when it changes", required="one; add certificate: …")
    ] = ""
    key: Annotated[str, _KEY, Field("the private key, as PEM", required="one; add key: …")] = ""


class PagesSettings(Group, frozen=True, gc=False):
    """Where status, explanations and decisions are served, which contain names and annotations of all tenants' pods.

    ``host`` is a loopback address, since all clients that reach the address can read the pages.
    ``enabled`` None: as in :class:`HttpSettings`.
    """

    enabled: Annotated[bool | None, FLAG, Field("whether pages are served", default="as `http.enabled`")] = None
    host: Annotated[
        str,
        ADDRESS,
        Field("address to listen on; only a loopback address; with port 0: a free port", key="address", into=("host", "port")),
    ] = "127.0.0.1"
    port: int = 8081
    authenticated: Annotated[AuthenticatedSettings, Field("another address, which requires authentication", default="none")] = (
        AuthenticatedSettings()
    )

    def check(self, at: Cursor) -> None:
        if not is_loopback(self.host):
            at.descend("address").wrong(
                "a loopback address such as 127.0.0.1:8081, because all clients that reach it can read names and annotations of all pods; "
                "for another address set pages.authenticated"
            )


class ExportersSettings(Group, frozen=True, gc=False):
    """The exporters whose pages are read for scheduled events, on port ``port`` of their pods; none without a namespace."""

    namespace: Annotated[
        str,
        dns_label("a namespace such as gpu-exporter", words="name of a namespace"),
        Field(
            "the namespace of the exporters; needed only if they may not write scheduled events on their nodes. Only pods of DaemonSets "
            "with the label app.kubernetes.io/component: exporter count, and each is believed only about its own node",
            default="pages are not read",
        ),
    ] = ""
    port: Annotated[int, count(1, "a port from 1 to 65535"), Field("the port of their pages")] = 9400
    interval: Annotated[Wait, Field("how often the pages are read", type="duration ≥ 1s")] = 2.0

    def check(self, at: Cursor) -> None:
        if self.port > 65535:
            at.descend("port").wrong("a port from 1 to 65535")
        if self.interval < 1.0:
            at.descend("interval").wrong("a duration of at least 1s")


class HistorySettings(Group, frozen=True, gc=False):
    """How many decisions are kept for ``why`` and ``replay``; ``folder`` is empty if they are kept in memory only."""

    folder: Annotated[
        str,
        path("the path of a writable folder"),
        Field("a writable folder for the file that keeps decisions across restarts. Not used on a dry run", default="in memory only"),
    ] = ""
    decisions: Annotated[int, count(1, "a number of decisions, 1 or more"), Field("maximum number of decisions that are kept")] = 1_000
    bytes: Annotated[int, MEMORY, Field("maximum size of the kept decisions in total")] = 64 * 1024**2


class LogSettings(Group, frozen=True, gc=False):
    level: Annotated[str, choice(LEVELS), Field("the lowest level that is logged")] = "info"


class IgnoredFinding(Group, frozen=True, gc=False):
    """An exception: findings of the check about objects that match ``object`` are not reported, up to the day ``until``, inclusive."""

    check_id: Annotated[
        str,
        text("the id of a check such as D34", words="id of a check", pattern="[A-Z]+[0-9]+"),
        Field("the check", required="one; add check: D34", key="check"),
    ] = ""
    object: Annotated[
        str,
        text('an object such as "PodDisruptionBudget default/*"', words="text"),
        Field("the objects, as findings name them: `Kind namespace/name`, in which `*` stands for any characters"),
    ] = "*"
    reason: Annotated[
        str,
        text("why the finding is accepted", words="text", pattern=r".*\S.*"),
        Field("why it is accepted, for those who read the file later", required="one; add reason: …"),
    ] = ""
    until: Annotated[
        str, DATE, Field("the last day of the exception, in UTC; then the finding is reported again", required="an end date; add until: …")
    ] = ""


class DoctorSettings(Group, frozen=True, gc=False):
    """Checks of the cluster while the controller runs, and findings that neither it nor ``gpuscaler doctor`` reports."""

    enabled: Annotated[Flag, Field("whether the controller checks the cluster while it runs")] = True
    ignore: Annotated[
        tuple[IgnoredFinding, ...],
        Field("[findings that are not reported](#exceptions), neither by the controller nor by `gpuscaler doctor --config`"),
    ] = ()


class RunSettings(Group, frozen=True, gc=False):
    """A run file. ``cloud`` is empty in a pools file, which ``plan`` accepts and ``run`` does not.

    ``namespace`` is where Lease, ledger and status are; empty for the pod's own, else kube-system. ``limits_stated`` is whether the file
    has the key ``limits`` at all, even if only to set none.
    """

    policy: Policy
    cloud: Annotated[
        str,
        choice(CLOUDS),
        Field(
            "the cloud to buy machines in. With `aws`, the pools are the cluster's [Auto Scaling groups](aws.md); with `azure`, its "
            "[AKS agent pools and scale sets](azure.md)",
            default="required by `run`",
        ),
    ] = ""
    simulated: Annotated[Simulated, Field("[the simulated cloud](#the-simulated-cloud)")] = Simulated()
    aws: Annotated[
        AwsSettings,
        Field(
            "[where the pools are in AWS](aws.md#settings); with `cloud: aws`, entries of `pools` are optional and only "
            "[change what is found there](aws.md#changing-what-was-found)"
        ),
    ] = AwsSettings()
    azure: Annotated[
        AzureSettings,
        Field(
            "[where the pools are in Azure](azure.md#settings); with `cloud: azure`, entries of `pools` are optional and only "
            "[change what is found there](azure.md#changing-what-was-found)"
        ),
    ] = AzureSettings()
    namespace: Annotated[
        str,
        dns_label("a namespace such as kube-system", words="name of a namespace"),
        Field(
            "where the Lease, the ledger (`gpuscaler-state`) and the status are kept",
            default="the pod's own; outside a cluster `kube-system`",
        ),
    ] = ""
    pace: Annotated[PaceSettings, Field("[how long the control loop waits](#pace)")] = PaceSettings()
    leader_election: Annotated[ElectionSettings, Field("[which of several copies acts](#leader-election)")] = ElectionSettings()
    rate_limit: Annotated[RateSettings, Field("[how many requests the API server gets](#rate-limit)")] = RateSettings()
    http: Annotated[HttpSettings, Field("[where metrics and health are served](#http)")] = HttpSettings()
    pages: Annotated[PagesSettings, Field("[where status, explanations and decisions are served](#pages)")] = PagesSettings()
    exporters: Annotated[ExportersSettings, Field("[whose pages are read for scheduled events](#exporters)")] = ExportersSettings()
    history: Annotated[HistorySettings, Field("[which decisions are kept](#history)")] = HistorySettings()
    log: Annotated[LogSettings, Field("[the log](#log)")] = LogSettings()
    doctor: Annotated[DoctorSettings, Field("[checks of the cluster while the controller runs](#doctor)")] = DoctorSettings()
    limits_stated: bool = False

    @property
    def has_account_pools(self) -> bool:
        """Whether the pools come from a cloud account, so that ``policy`` has none."""
        return self.cloud in ACCOUNT_CLOUDS

    @property
    def overrides(self) -> tuple[PoolOverride, ...]:
        """The entries of ``pools``, if the pools come from a cloud account."""
        return self.aws.overrides if self.cloud == "aws" else self.azure.overrides if self.cloud == "azure" else ()

    def with_overrides(self, overrides: tuple[PoolOverride, ...]) -> "RunSettings":
        """These settings with other entries of ``pools``. Without an account they have none, and stay as they are."""
        if self.cloud == "aws":
            return replace(self, aws=replace(self.aws, overrides=overrides))
        return replace(self, azure=replace(self.azure, overrides=overrides)) if self.cloud == "azure" else self


def has_account_pools(fields: Fields) -> bool:
    """Whether the pools of the file with the keys ``fields`` come from a cloud account."""
    return "cloud" in fields and fields["cloud"].entry.value in ACCOUNT_CLOUDS


def read_run(fields: Fields, policy: Policy, folder: Path) -> RunSettings:
    """Read the settings of a file with the known keys ``fields``; paths are relative to ``folder``."""
    settings = RunSettings(policy, **values(RunSettings, fields, ReadContext(policy, folder)), limits_stated="limits" in fields)
    if policy.region and not settings.aws.regions and ("aws" in fields or settings.cloud == "aws"):
        settings = replace(settings, aws=replace(settings.aws, regions=(policy.region,)))
    if settings.cloud == "aws" and not settings.aws.regions and not _is_stated(fields, "aws", "regions"):
        fields["cloud"].add_problem("saw no region, expected the regions of the account's groups; add aws: {regions: [us-east-1]}")
    if settings.cloud == "azure" and not _is_stated(fields, "azure", "subscriptions"):
        fields["cloud"].add_problem(
            "saw no subscription, expected those with the cluster's pools; "
            "add azure: {subscriptions: [{id: …, cluster: {name: …, resource_group: …}}]}"
        )
    return settings.with_overrides(read_overrides(fields["pools"]) if "pools" in fields and settings.has_account_pools else ())


def _is_stated(fields: Fields, cloud: str, key: str) -> bool:
    return cloud in fields and fields[cloud].has(key)
