"""The control path: faults, and actions of users and markets, requested over HTTP beside the services.

``GET`` shows, ``PUT`` sets, ``DELETE`` clears; bodies are JSON. ``/_control/faults`` are faults of calls, ``/_control/troubles`` refuse
launches, ``/_control/capacity`` is the number of machines by (market, instance type, zone), ``/_control/interrupt`` reclaims an
instance with a notice, ``/_control/conditions`` are the conditions of the account. If its instances are nodes, ``/_control/plugins``
restarts device plugins, ``/_control/absent`` hides resources, and ``/_control/kubelets`` stops kubelets.
"""

import json
from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Struct

from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.autoscaling import scaling
from gpuscaler.embedded.aws.hardware.hardware import Trouble
from gpuscaler.embedded.aws.messages import notices
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.serving.faults import Fault, Faults
from gpuscaler.embedded.aws.wire.reading import Request
from gpuscaler.embedded.aws.wire.writing import Answer
from gpuscaler.embedded.serving import node_faults
from gpuscaler.embedded.serving.conditions import check_market, values_of, with_changes
from gpuscaler.model.offerings import MARKETS

PATH: Final = "/_control/"


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """Each matching market of a type in a zone has ``machines`` machines; None: unlimited."""

    machines: int | None
    market: str = ""
    instance_type: str = ""
    zone: str = ""

    def __post_init__(self) -> None:
        check_market(self.market, MARKETS)


class Interruption(Struct, frozen=True, forbid_unknown_fields=True):
    """``instance`` is reclaimed ``notice`` seconds from now, announced if that is above 0; None: only a rebalance recommendation."""

    instance: str
    notice: float | None = 120.0


def handle(account: Account, faults: Faults, request: Request) -> Answer:
    """The answer to a request to the control path."""
    account.advance()
    regions = list(account.regions.values())
    name, nodes = request.path.removeprefix(PATH), account.nodes
    act, of_nodes = _ACTS.get(name), node_faults.ACTS.get(name) if nodes is not None else None
    if act is None and of_nodes is None:
        paths = (*_ACTS, *(node_faults.ACTS if nodes is not None else ()))
        return _json(404, {"message": f"saw {request.path}, expected one of {', '.join(paths)} below {PATH}"})
    try:
        if nodes is not None and of_nodes is not None:
            return _json(200, of_nodes(nodes, request))
        return _json(200, _ACTS[name](regions, faults, request))
    except (msgspec.DecodeError, KeyError, ValueError) as error:
        return _json(400, {"message": str(error)})


def set_capacity(region: Region, limit: Limit) -> None:
    """Lower or raise the capacity; machines beyond it are reclaimed."""
    limits = region.hardware.markets.limits
    key = (limit.market, limit.instance_type, limit.zone)
    limits.pop(key, None)
    if limit.machines is not None:
        limits[key] = limit.machines
    region.hardware.core.check_markets(region.now)
    region.advance(region.now)


def _faults(_regions: list[Region], faults: Faults, request: Request) -> Any:
    if request.method == "PUT":
        faults.all.append(msgspec.json.decode(request.body, type=Fault))
    elif request.method == "DELETE":
        faults.all.clear()
    return msgspec.to_builtins(faults.all)


def _troubles(regions: list[Region], _faults: Faults, request: Request) -> Any:
    for region in regions:
        if request.method == "PUT":
            region.hardware.troubles.append(msgspec.json.decode(request.body, type=Trouble))
        elif request.method == "DELETE":
            region.hardware.troubles.clear()
    return {region.name: msgspec.to_builtins(region.hardware.troubles) for region in regions}


def _capacity(regions: list[Region], _faults: Faults, request: Request) -> Any:
    for region in regions:
        if request.method == "PUT":
            set_capacity(region, msgspec.json.decode(request.body, type=Limit))
        elif request.method == "DELETE":
            region.hardware.markets.limits.clear()
    return {region.name: [_shown(*pair) for pair in region.hardware.markets.limits.items()] for region in regions}


def _shown(key: tuple[str, str, str], machines: int) -> Mapping[str, Any]:
    return {"market": key[0], "instance_type": key[1], "zone": key[2], "machines": machines}


def _interrupt(regions: list[Region], _faults: Faults, request: Request) -> Any:
    interruption = msgspec.json.decode(request.body, type=Interruption)
    for region in regions:
        if (instance := region.instances.get(interruption.instance)) is not None:
            if interruption.notice is None:
                notices.rebalance(region, instance)
                scaling.recommend_rebalance(region, instance)
            else:
                scaling.reclaim(region, instance, notice=interruption.notice)
            return {"instance": interruption.instance}
    raise ValueError(f"saw {interruption.instance}, expected an instance of this account")


def _conditions(regions: list[Region], _faults: Faults, request: Request) -> Any:
    for region in regions:
        if request.method == "PUT":
            region.conditions = with_changes(region.conditions, msgspec.json.decode(request.body, type=dict[str, Any]))
        elif request.method == "DELETE":
            region.conditions = region.first_conditions
    return {region.name: values_of(region.conditions) for region in regions}


_ACTS: Final = {
    "faults": _faults,
    "troubles": _troubles,
    "capacity": _capacity,
    "interrupt": _interrupt,
    "conditions": _conditions,
}


def _json(status: int, content: Any) -> Answer:
    return Answer(status, {"content-type": "application/json"}, json.dumps(content).encode() + b"\n")
