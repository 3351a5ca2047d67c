"""Priorities of pools from the ConfigMap of Cluster Autoscaler's priority expander, which is read regularly."""

import asyncio
from collections.abc import Callable

import msgspec
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, NotFound, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.pools import Policy
from gpuscaler.model.priorities.inverting import priority_warnings
from gpuscaler.model.priorities.priorities import Priorities, apply_priorities, parse_priorities
from gpuscaler.model.reading.errors import SettingsError

NAMESPACE, NAME, KEY = "kube-system", "cluster-autoscaler-priority-expander", "priorities"
PLACE = f"ConfigMap {NAMESPACE}/{NAME}"
#: How often the ConfigMap is read, in seconds.
POLL_SECONDS = 10.0
#: How many pools of one priority are named.
NAMED = 5
_LOG = structlog.get_logger(__name__)


class WireConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class PrioritiesInForce(msgspec.Struct, frozen=True):
    """Which priorities of pools are in force, in a sentence, empty before the first read; and problems of those in the ConfigMap."""

    text: str = ""
    remarks: tuple[str, ...] = ()


class PriorityExpander:
    """Reads the ConfigMap. ``trouble`` says what is wrong with it now, empty if nothing is; a wrong one changes nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._priorities: Priorities | None = None
        self._error = self._mismatch = ""
        self._was_polled = False
        self._in_force = self._announced = PrioritiesInForce()

    @property
    def trouble(self) -> str:
        return self._error or self._mismatch

    def policy(self, policy: Policy) -> Policy:
        """``policy`` with the priorities of the ConfigMap, if there is one."""
        self._mismatch = ""
        if self._priorities is None:
            return policy
        prioritised_policy, mismatch = apply_priorities(policy, self._priorities)
        self._mismatch = f"{PLACE}: {mismatch}" if mismatch else ""
        if mismatch:
            self._in_force = PrioritiesInForce(f"{PLACE} exists but is not in force: it matches no pool")
            return prioritised_policy
        problems = tuple(f"{PLACE}: {remark}" for remark in priority_warnings(prioritised_policy, self._priorities))
        self._in_force = PrioritiesInForce(f"{PLACE} is in force: {_describe_order(prioritised_policy)}", problems)
        return prioritised_policy

    @property
    def in_force(self) -> PrioritiesInForce:
        """The priorities in force since the last :meth:`policy`."""
        return self._in_force if self._priorities is not None else PrioritiesInForce(self._describe_absence())

    def _describe_absence(self) -> str:
        if not self._was_polled:
            return ""
        return f"{PLACE} is not in force ({self._error})" if self._error else f"those of the settings; there is no {PLACE}"

    def announce(self) -> None:
        """Log the priorities in force when they change; without a ConfigMap nothing is logged until one has gone."""
        in_force = self.in_force
        if in_force != self._announced:
            log = _LOG.warning if in_force.remarks or self.trouble else _LOG.info
            if PLACE in self._announced.text or self._priorities is not None:
                log("priorities of pools", priorities=in_force.text, problems=list(in_force.remarks))
            self._announced = in_force

    async def run(self, changed: Callable[[], None]) -> None:
        """Read the ConfigMap until cancelled; ``changed`` is called when the priorities have changed."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if await self.poll():
                changed()

    async def poll(self) -> bool:
        """Read the ConfigMap once; True if the priorities have changed."""
        before, self._was_polled = self._priorities, True
        try:
            data = await self._client.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
            self._priorities, self._error = _parse_config_map(data), ""
        except NotFound:
            self._priorities, self._error = None, ""
        except (ApiError, Unreachable) as error:
            self._error = f"{PLACE} could not be read, so the priorities of pools stay as they were: {error}"
        except (SettingsError, msgspec.DecodeError) as error:
            self._error = f"{error}; the priorities of pools stay as they were"
        return self._priorities != before


def _describe_order(policy: Policy) -> str:
    """Pools by priority, the highest first."""
    tiers: dict[int, list[str]] = {}
    for pool in sorted(policy.pools, key=lambda pool: (-pool.priority, pool.name)):
        tiers.setdefault(pool.priority, []).append(pool.name)
    return "; ".join(f"{number}: {', '.join(names[:NAMED])}{_format_pools(names)}" for number, names in tiers.items())


def _format_pools(names: list[str]) -> str:
    return f" and {len(names) - NAMED} more" if len(names) > NAMED else ""


def _parse_config_map(data: bytes) -> Priorities:
    entries = msgspec.json.decode(data, type=WireConfigMap).data or {}
    if KEY not in entries:
        raise msgspec.ValidationError(f"{PLACE}: saw no key {KEY}, expected one with YAML in it, such as 10: [.*]")
    return parse_priorities(entries[KEY], f"{PLACE}, {KEY}")
