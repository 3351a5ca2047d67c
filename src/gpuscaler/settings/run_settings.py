"""What `gpuscaler run` is told: the policy, and how to carry it out. Every field is described in ``docs/reference/run-file.md``."""

from collections.abc import Mapping
from ipaddress import ip_address

from msgspec import Struct

from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.model.pools import Policy

#: Clouds that a file can name, and those of them that this version can drive.
CLOUDS = ("simulated", "aws")
DRIVEN = ("simulated", "aws")
#: Clouds that a later version will know, so that their names are no spelling mistakes.
LATER_CLOUDS = ("azure",)
#: How machines are bought in an Auto Scaling group; ``auto`` takes the best way that the group allows.
LAUNCHES = ("auto", "launch-instances", "desired-capacity", "fleet")
LEVELS = ("debug", "info", "warning", "error")


class Span(Struct, frozen=True, gc=False):
    """A time that varies: never below ``low`` or above ``high``, most often near ``mode``; in seconds."""

    low: float
    mode: float
    high: float


class Dry(Struct, frozen=True, gc=False):
    """Offerings of which there is nothing to buy; what is empty matches all."""

    pool: str = ""
    type: str = ""
    market: str = ""
    zone: str = ""


class MachineQuota(Struct, frozen=True, gc=False):
    """At most ``machines`` of ``types`` in ``market`` at a time; what is empty means all."""

    machines: int
    types: tuple[str, ...] = ()
    market: str = ""


class Reclaim(Struct, frozen=True, gc=False):
    """How machines of a market that ran dry are taken back: ``after`` so long, told ``notice`` seconds before, but for a share."""

    after: Span = Span(0.0, 0.0, 180.0)
    notice: float = 120.0
    without_notice: float = 0.05


class AbsentResource(Struct, frozen=True, gc=False):
    """Of machines of ``type``, empty means all, the share ``share`` never shows ``resource``."""

    resource: str
    type: str = ""
    share: float = 1.0


class SimulatedFaults(Struct, frozen=True, gc=False):
    """What goes wrong with machines and with calls of the simulated cloud: shares of them from 0 to 1.

    Machines of which the share ``never_registers`` never joins, and ``impaired`` of those the cloud itself says are broken; of which
    ``never_visible`` never show their GPUs; purchases of which ``partial_grants`` are granted in part. Calls of which ``throttled`` are
    refused and ``lost`` are never answered. Lists are ``stale`` seconds behind; without ``tokens`` a repeated order buys again.

    ``absent`` are resources that are promised and never there. Device plugins restart every ``plugin_restarts`` seconds on the average and
    are away for ``plugin_away``, kubelets stop for good after ``kubelet_stops`` on the average; 0 means never.
    """

    never_registers: float = 0.0
    impaired: float = 0.0
    never_visible: float = 0.0
    partial_grants: float = 0.0
    throttled: float = 0.0
    lost: float = 0.0
    stale: float = 0.0
    tokens: bool = True
    absent: tuple[AbsentResource, ...] = ()
    plugin_restarts: float = 0.0
    plugin_away: float = 45.0
    kubelet_stops: float = 0.0


class Simulated(Struct, frozen=True, gc=False):
    """The simulated cloud. ``series`` is the path of a file of spot markets over time, empty where ``dry`` says all."""

    boot: Span = Span(150.0, 200.0, 240.0)
    device_plugin_delay: Span = Span(30.0, 45.0, 60.0)
    capacity_error_delay: Span = Span(1.0, 1.5, 5.0)
    image_pull: Span = Span(10.0, 30.0, 90.0)
    dry: tuple[Dry, ...] = ()
    series: str = ""
    quotas: tuple[MachineQuota, ...] = ()
    reclaim: Reclaim = Reclaim()
    faults: SimulatedFaults = SimulatedFaults()
    seed: int = 0
    kubelet: bool = True


class AwsSettings(Struct, frozen=True, gc=False):
    """Where the groups of a cluster are looked for in AWS.

    Nothing is adopted without ``cluster``. ``groups`` are names of groups, ``tags`` mark further ones, all of them together; ``exclude``
    leaves groups out, by their names, patterns of these, or ``tag:KEY=VALUE``. ``prices`` win over those of AWS. ``overrides`` are the
    entries of ``pools``.
    """

    cluster: str = ""
    regions: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    tags: Mapping[str, str] = {}
    exclude: tuple[str, ...] = ()
    queue_url: str = ""
    endpoint_url: str = ""
    launch: str = "auto"
    prices: tuple[OfferingPrice, ...] = ()
    overrides: tuple[PoolOverride, ...] = ()


class PaceSettings(Struct, frozen=True, gc=False):
    """How the loop waits, in seconds."""

    debounce: float = 0.2
    patience: float = 0.6
    resync: float = 10.0
    register_timeout: float = 900.0
    ready_timeout: float = 900.0
    consolidate: float = 60.0


class ElectionSettings(Struct, frozen=True, gc=False):
    """Whether and how several copies agree which one acts; times in seconds."""

    enabled: bool = True
    name: str = "gpuscaler"
    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0


class RateSettings(Struct, frozen=True, gc=False):
    """How many requests a second the API server is asked at most, and how many at once."""

    qps: float = 200.0
    burst: int = 300


class HttpSettings(Struct, frozen=True, gc=False):
    """Where metrics and health are served, to whoever can connect; an empty ``host`` means all addresses.

    ``certificate`` and ``key`` are paths of PEM files; without them there is no TLS. ``alive_within`` seconds must the loop have turned in.
    """

    enabled: bool = True
    host: str = ""
    port: int = 8080
    certificate: str = ""
    key: str = ""
    alive_within: float = 120.0


def is_loopback(host: str) -> bool:
    """Whether ``host``, a name or an address, leads to this machine and to no other."""
    try:
        return host == "localhost" or ip_address(host).is_loopback
    except ValueError:
        return False


class AuthenticatedSettings(Struct, frozen=True, gc=False):
    """Where pages are served to whoever has a token of the cluster and the right to read them; nowhere without a ``port``.

    An empty ``host`` means all addresses; ``certificate`` and ``key`` are paths of PEM files, and required, since tokens come in.
    """

    host: str = ""
    port: int | None = None
    certificate: str = ""
    key: str = ""


class PagesSettings(Struct, frozen=True, gc=False):
    """Where status, explanations and decisions are served, which tell names and annotations of all tenants' pods.

    ``host`` is a loopback address: whoever reaches it reads them. ``enabled`` None means where anything is served at all.
    """

    enabled: bool | None = None
    host: str = "127.0.0.1"
    port: int = 8081
    authenticated: AuthenticatedSettings = AuthenticatedSettings()


class HistorySettings(Struct, frozen=True, gc=False):
    """How many decisions are kept for ``why`` and ``replay``; ``folder`` is empty where they are kept in memory only."""

    folder: str = ""
    decisions: int = 1_000
    bytes: int = 64 * 1024**2


class LogSettings(Struct, frozen=True, gc=False):
    level: str = "info"


class RunSettings(Struct, frozen=True, gc=False):
    """A run file. ``cloud`` is empty in a pools file, which ``plan`` takes and ``run`` does not.

    ``namespace`` is where Lease, memory and status are; empty for the pod's own, else kube-system. ``limits_stated`` tells whether the file
    speaks of limits at all, if only to say that there are none.
    """

    policy: Policy
    cloud: str = ""
    simulated: Simulated = Simulated()
    aws: AwsSettings = AwsSettings()
    namespace: str = ""
    pace: PaceSettings = PaceSettings()
    leader_election: ElectionSettings = ElectionSettings()
    rate_limit: RateSettings = RateSettings()
    http: HttpSettings = HttpSettings()
    pages: PagesSettings = PagesSettings()
    history: HistorySettings = HistorySettings()
    log: LogSettings = LogSettings()
    limits_stated: bool = False
