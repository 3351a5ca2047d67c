"""Priorities of pools that are kept where Cluster Autoscaler's priority expander reads them: a ConfigMap, read again and again."""

import asyncio
from collections.abc import Callable

import msgspec

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, NotFound, Unreachable
from gpuscaler.kube.resources import CONFIG_MAPS
from gpuscaler.model.pools import Policy
from gpuscaler.settings.errors import SettingsError
from gpuscaler.settings.priorities import Priorities, parse_priorities, prioritised

NAMESPACE, NAME, KEY = "kube-system", "cluster-autoscaler-priority-expander", "priorities"
PLACE = f"ConfigMap {NAMESPACE}/{NAME}"
#: How often it is read, in seconds.
POLL_SECONDS = 10.0


class WireConfigMap(msgspec.Struct):
    data: dict[str, str] | None = None


class PriorityExpander:
    """``trouble`` says what is wrong with the ConfigMap now, empty where nothing is; one that is wrong changes nothing."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._priorities: Priorities | None = None
        self._wrong = self._odd = ""

    @property
    def trouble(self) -> str:
        return self._wrong or self._odd

    def policy(self, policy: Policy) -> Policy:
        """``policy`` with the priorities of the ConfigMap, where there is one."""
        self._odd = ""
        if self._priorities is None:
            return policy
        found, odd = prioritised(policy, self._priorities)
        self._odd = f"{PLACE}: {odd}" if odd else ""
        return found

    async def run(self, changed: Callable[[], None]) -> None:
        """Read it until cancelled; ``changed`` is called when priorities are other ones."""
        while True:
            await asyncio.sleep(POLL_SECONDS)
            if await self.poll():
                changed()

    async def poll(self) -> bool:
        """Read it once; whether priorities are other ones now."""
        before = self._priorities
        try:
            data = await self._client.get(CONFIG_MAPS, NAME, namespace=NAMESPACE)
            self._priorities, self._wrong = _read(data), ""
        except NotFound:
            self._priorities, self._wrong = None, ""
        except (ApiError, Unreachable) as error:
            self._wrong = f"{PLACE} could not be read, so the priorities of pools stay as they were: {error}"
        except (SettingsError, msgspec.DecodeError) as error:
            self._wrong = f"{error}; the priorities of pools stay as they were"
        return self._priorities != before


def _read(data: bytes) -> Priorities:
    found = msgspec.json.decode(data, type=WireConfigMap).data or {}
    if KEY not in found:
        raise msgspec.ValidationError(f"{PLACE}: saw no key {KEY}, expected one with YAML in it, such as 10: [.*]")
    return parse_priorities(found[KEY], f"{PLACE}, {KEY}")
