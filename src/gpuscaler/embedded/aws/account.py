"""An AWS account: its regions and their contents. All of it is data and calls; time moves only with :meth:`Account.advance`."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import Final

from gpuscaler.embedded.aws.autoscaling import scaling
from gpuscaler.embedded.aws.conditions import Conditions
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.serving.node_faults import Nodes
from gpuscaler.simulation.cloud.markets import Markets

#: Where the Pricing API is served: AWS Price List, "Endpoints".
PRICING_REGIONS: Final = ("us-east-1", "eu-central-1", "ap-south-1", "cn-northwest-1")


class Account:
    """An account with ``regions`` of ``zones`` zones each. ``now`` is its clock, in seconds since the epoch.

    ``conditions`` are its delays and random failures, ``series`` the capacity and prices of spot markets.
    """

    id = "123456789012"

    def __init__(
        self,
        *,
        now: Callable[[], float],
        regions: Iterable[str] = ("us-east-1",),
        zones: int = 3,
        conditions: Conditions | None = None,
        series: Markets | None = None,
        seed: int = 0,
    ) -> None:
        self.now = now
        #: Possible faults of nodes, if its instances are nodes of a cluster.
        self.nodes: Nodes | None = None
        first_conditions = conditions or Conditions()
        self.regions: dict[str, Region] = {}
        for place, name in enumerate(regions):
            region = Region(
                name,
                account=self.id,
                zones=zones,
                conditions=first_conditions,
                reconcile=scaling.reconcile_group,
                place=place,
                seed=seed,
                series=series,
            )
            region.listeners.append(partial(scaling.handle_event, region))
            self.regions[name] = region
        self.advance()

    def region(self, name: str) -> Region:
        """The region of that name. Raises :class:`AwsError` if the account does not use it."""
        if name not in self.regions:
            raise AwsError("OptInRequired", f"You are not subscribed to this service in {name}", status=403)
        return self.regions[name]

    def pricing(self, name: str) -> Region:
        """The region in which a Pricing API call is answered: only a few regions serve it, also for accounts that use others."""
        if name not in PRICING_REGIONS:
            raise AwsError("UnrecognizedClientException", f"The Pricing API has no endpoint in {name}", status=400)
        return self.regions.get(name) or next(iter(self.regions.values()))

    def next_event(self) -> float | None:
        """The time of the next scheduled event."""
        return min((at for region in self.regions.values() if (at := region.next_event()) is not None), default=None)

    def advance(self) -> None:
        """Process everything that is due by now."""
        now = self.now()
        for region in self.regions.values():
            region.advance(now)
