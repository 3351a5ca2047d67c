"""An Azure account. All of it is data and calls; time moves only with :meth:`Account.advance`."""

from collections.abc import Callable, Iterable
from functools import partial

from gpuscaler.embedded.azure.compute import interrupting
from gpuscaler.embedded.azure.conditions import Conditions
from gpuscaler.embedded.azure.contents import SUBSCRIPTION, TENANT, Contents
from gpuscaler.simulation.cloud.markets import Markets


class Account(Contents):
    """An account with ``subscriptions``, and ``locations`` of ``zones`` zones each. ``now`` is its clock, in seconds since the epoch.

    ``conditions`` are its delays and behaviour, ``series`` the capacity and prices of spot markets.
    """

    def __init__(
        self,
        *,
        now: Callable[[], float],
        subscriptions: Iterable[str] = (SUBSCRIPTION,),
        locations: Iterable[str] = ("eastus",),
        zones: int = 3,
        conditions: Conditions | None = None,
        series: Markets | None = None,
        tenant: str = TENANT,
        seed: int = 0,
    ) -> None:
        super().__init__(
            now=now,
            subscriptions=tuple(subscriptions),
            locations=tuple(locations),
            zones=zones,
            conditions=conditions or Conditions(),
            series=series or Markets(),
            tenant=tenant,
            seed=seed,
        )
        self.listeners.append(partial(interrupting.handle_event, self))
