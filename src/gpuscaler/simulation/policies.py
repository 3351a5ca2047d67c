"""Who may decide in a replay, by name. A factory is given the pools and makes an autoscaler for one run."""

from collections.abc import Callable, Mapping

from gpuscaler.model.pools import Policy
from gpuscaler.simulation.autoscaler import Autoscaler
from gpuscaler.simulation.ours import Gpuscaler

POLICIES: Mapping[str, Callable[[Policy], Autoscaler]] = {"gpuscaler": Gpuscaler}
