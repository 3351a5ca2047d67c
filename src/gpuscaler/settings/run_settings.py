"""What `gpuscaler run` is told: the policy, and how to carry it out; the keys that a run file has beside those of a pools file.

The tables of ``docs/reference/run-file.md`` are made from these classes.
"""

from ipaddress import ip_address
from pathlib import Path
from typing import Annotated

from msgspec.structs import replace

from gpuscaler.model.pools import Policy
from gpuscaler.settings.aws_file import AwsSettings
from gpuscaler.settings.cursor import Cursor
from gpuscaler.settings.fields.kinds import ADDRESS, FLAG, MEMORY, Flag, Wait, any_of, choice, count, dns_label, path, positive
from gpuscaler.settings.fields.table import Field, Fields, Given, Group, Kind, values
from gpuscaler.settings.pools import read_overrides
from gpuscaler.settings.simulated import Simulated

#: Clouds that a file can name, and those of them that this version can drive.
CLOUDS = ("simulated", "aws")
DRIVEN = ("simulated", "aws")
#: Clouds that a later version will know, so that their names are no spelling mistakes.
LATER_CLOUDS = ("azure",)
LEVELS = ("debug", "info", "warning", "error")
#: How long a call of a cloud may take, in seconds: the controller's.
LONGEST_CALL = 10.0

_CERTIFICATE, _KEY = path("the path of a certificate as PEM"), path("the path of a private key as PEM")


class PaceSettings(Group, frozen=True, gc=False):
    """How the loop waits, in seconds."""

    debounce: Annotated[Wait, Field("a plan is made when no pod became unschedulable for so long")] = 0.2
    patience: Annotated[Wait, Field("but not later than this after the first", type="duration ≥ `debounce`")] = 0.6
    resync: Annotated[Wait, Field("everything is looked at, and planned for, at least this often")] = 10.0
    register_timeout: Annotated[Wait, Field("a machine that has not registered as a node by then is given back")] = 900.0
    ready_timeout: Annotated[Wait, Field("a machine that has registered and whose resources are not all there by then is given back")] = (
        900.0
    )
    consolidate: Annotated[
        Wait,
        Field(
            "whether running pods would fit better elsewhere, the dearest part of a plan, is looked at this often at most; "
            "idle machines go all the same"
        ),
    ] = 60.0

    def check(self, at: Cursor) -> None:
        if self.debounce > self.patience:
            saw = f"saw debounce {self.debounce:g} s above patience {self.patience:g} s"
            at.say(f"{saw}, expected at most that; lower debounce or raise patience")


class ElectionSettings(Group, frozen=True, gc=False):
    """Whether and how several copies agree which one acts; times in seconds."""

    enabled: Annotated[Flag, Field("`false` only where one copy alone can ever run")] = True
    name: Annotated[str, dns_label("the name of a Lease such as gpuscaler"), Field("of the Lease")] = "gpuscaler"
    lease: Annotated[Wait, Field("how long a copy that does not renew its lease still holds it", type="whole seconds as a duration")] = 15.0
    renew: Annotated[Wait, Field("a leader that could not renew for so long stops to lead", type="duration below `lease`")] = 10.0
    retry: Annotated[Wait, Field("how often the lease is renewed, or tried for", type="duration below `renew`")] = 2.0

    def check(self, at: Cursor) -> None:
        if not self.lease > self.renew > self.retry:
            saw = f"saw lease {self.lease:g} s, renew {self.renew:g} s, retry {self.retry:g} s"
            at.say(f"{saw}, expected lease above renew above retry; raise lease or lower the others")
        elif self.lease != int(self.lease):
            at.below("lease").wrong("whole seconds, which is how a Lease is written")
        elif self.lease - self.retry < LONGEST_CALL + 1:
            at.say(
                f"saw lease {self.lease:g} s and retry {self.retry:g} s, expected at least {LONGEST_CALL + 1:g} s between them: "
                f"calls of a cloud take up to {LONGEST_CALL:g} s, and none begins that may outlast the lease; raise lease"
            )


class RateSettings(Group, frozen=True, gc=False):
    """How many requests a second the API server is asked at most, and how many at once."""

    qps: Annotated[float, positive("requests a second, above 0"), Field("requests a second in the long run")] = 200.0
    burst: Annotated[int, count(1, "a number of requests, 1 or more"), Field("requests at once")] = 300


class HttpSettings(Group, frozen=True, gc=False):
    """Where metrics and health are served, to whoever can connect; an empty ``host`` means all addresses.

    ``certificate`` and ``key`` are paths of PEM files; without them there is no TLS.
    """

    enabled: Annotated[Flag, Field("whether metrics and health are served")] = True
    host: Annotated[
        str,
        ADDRESS,
        Field("where; without a host at all addresses, with port 0 at one that is free", key="address", into=("host", "port")),
    ] = ""
    port: int = 8080
    certificate: Annotated[str, _CERTIFICATE, Field("PEM; read again when it changes. Needs `key`", default="no TLS")] = ""
    key: Annotated[str, _KEY, Field("PEM. Needs `certificate`", default="no TLS")] = ""
    alive_within: Annotated[Wait, Field("`/healthz` fails when the loop has not turned for so long")] = 120.0

    def check(self, at: Cursor) -> None:
        for key, other in (("certificate", "key"), ("key", "certificate")):
            if at.has(key) and not at.has(other):
                at.say(f"saw {key} without {other}, expected both or neither; add {other}")


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, leads to this machine and to no other."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class AuthenticatedSettings(Group, frozen=True, gc=False):
    """Where pages are served to whoever has a token of the cluster and the right to read them; nowhere without a ``port``.

    An empty ``host`` means all addresses; ``certificate`` and ``key`` are paths of PEM files, and required, since tokens come in.
    """

    host: Annotated[
        str,
        ADDRESS,
        Field("where; without a host at all addresses", required="one; add address: …", key="address", into=("host", "port")),
    ] = ""
    port: int | None = None
    certificate: Annotated[str, _CERTIFICATE, Field("PEM; read again when it changes", required="one; add certificate: …")] = ""
    key: Annotated[str, _KEY, Field("PEM", required="one; add key: …")] = ""


class PagesSettings(Group, frozen=True, gc=False):
    """Where status, explanations and decisions are served, which tell names and annotations of all tenants' pods.

    ``host`` is a loopback address: whoever reaches it reads them. ``enabled`` None means where anything is served at all.
    """

    enabled: Annotated[bool | None, FLAG, Field("whether they are served", default="as `http.enabled`")] = None
    host: Annotated[
        str,
        ADDRESS,
        Field("where; only a loopback address, with port 0 at one that is free", key="address", into=("host", "port")),
    ] = "127.0.0.1"
    port: int = 8081
    authenticated: Annotated[
        AuthenticatedSettings, Field("another address, at which whoever asks is asked who it is", default="nowhere else")
    ] = AuthenticatedSettings()

    def check(self, at: Cursor) -> None:
        if not is_loopback(self.host):
            at.below("address").wrong(
                "a loopback address such as 127.0.0.1:8081, since whoever reaches it reads names and annotations of all pods; "
                "for another one set pages.authenticated"
            )


class HistorySettings(Group, frozen=True, gc=False):
    """How many decisions are kept for ``why`` and ``replay``; ``folder`` is empty where they are kept in memory only."""

    folder: Annotated[
        str,
        path("the path of a folder that can be written"),
        Field(
            "a folder that can be written; a file in it keeps decisions over restarts. Never used on a dry run", default="in memory only"
        ),
    ] = ""
    decisions: Annotated[int, count(1, "a number of decisions, 1 or more"), Field("how many are kept at most")] = 1_000
    bytes: Annotated[int, MEMORY, Field("how much they take at most")] = 64 * 1024**2


class LogSettings(Group, frozen=True, gc=False):
    level: Annotated[str, choice(LEVELS), Field("what is not logged is what is below it")] = "info"


def _cloud(at: Cursor, _: Given) -> str | None:
    if at.entry.value in LATER_CLOUDS:
        at.wrong(f"{' or '.join(CLOUDS)}: this version cannot drive {at.entry.value} yet")
        return None
    return at.choice(CLOUDS)


class RunSettings(Group, frozen=True, gc=False):
    """A run file. ``cloud`` is empty in a pools file, which ``plan`` takes and ``run`` does not.

    ``namespace`` is where Lease, memory and status are; empty for the pod's own, else kube-system. ``limits_stated`` tells whether the file
    speaks of limits at all, if only to say that there are none.
    """

    policy: Policy
    cloud: Annotated[
        str,
        Kind(any_of(CLOUDS), {"enum": list(CLOUDS)}, _cloud),
        Field(
            "the cloud that machines are bought in. Of AWS it takes the [Auto Scaling groups](aws.md) of a cluster",
            default="required by `run`",
        ),
    ] = ""
    simulated: Annotated[Simulated, Field("[the simulated cloud](#the-simulated-cloud)")] = Simulated()
    aws: Annotated[
        AwsSettings,
        Field(
            "[where the pools are in AWS](aws.md#settings); with `cloud: aws` the entries of `pools` only "
            "[change what is found there](aws.md#changing-what-was-found), and may be left out"
        ),
    ] = AwsSettings()
    namespace: Annotated[
        str,
        dns_label("a namespace such as kube-system", words="name of a namespace"),
        Field(
            "where the Lease, the memory (`gpuscaler-state`) and the status are kept",
            default="the pod's own; outside of a cluster `kube-system`",
        ),
    ] = ""
    pace: Annotated[PaceSettings, Field("[how the loop waits](#pace)")] = PaceSettings()
    leader_election: Annotated[ElectionSettings, Field("[which of several copies acts](#leader-election)")] = ElectionSettings()
    rate_limit: Annotated[RateSettings, Field("[how fast the API server is asked](#rate-limit)")] = RateSettings()
    http: Annotated[HttpSettings, Field("[where metrics and health are served](#http)")] = HttpSettings()
    pages: Annotated[PagesSettings, Field("[where status, explanations and decisions are served](#pages)")] = PagesSettings()
    history: Annotated[HistorySettings, Field("[which decisions are kept](#history)")] = HistorySettings()
    log: Annotated[LogSettings, Field("[the log](#log)")] = LogSettings()
    limits_stated: bool = False


def from_account(fields: Fields) -> bool:
    """Whether pools come from an account, so that those of the file only change them."""
    return "cloud" in fields and fields["cloud"].entry.value == "aws"


def read_run(fields: Fields, policy: Policy, folder: Path) -> RunSettings:
    """The settings of a file whose known keys are ``fields``; paths are relative to ``folder``."""
    found = RunSettings(policy, **values(RunSettings, fields, Given(policy, folder)), limits_stated="limits" in fields)
    aws = found.aws
    if policy.region and not aws.regions and ("aws" in fields or from_account(fields)):
        aws = replace(aws, regions=(policy.region,))
    if from_account(fields):
        if not aws.regions and ("aws" not in fields or not fields["aws"].has("regions")):
            fields["cloud"].say("saw no region, expected the regions of the account's groups; add aws: {regions: [us-east-1]}")
        aws = replace(aws, overrides=read_overrides(fields["pools"]) if "pools" in fields else ())
    return replace(found, aws=aws)
