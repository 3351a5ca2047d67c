"""The control path: faults, and actions of users, markets and Azure itself, requested over HTTP beside the services.

``GET`` shows, ``PUT`` sets, ``DELETE`` clears; bodies are JSON. ``/_control/faults`` are faults of calls, ``/_control/troubles`` fail
machines, ``/_control/capacity`` is the number of machines by (market, size, zone), ``/_control/quotas`` are limits in vCPUs,
``/_control/restrictions`` are sizes that Resource SKUs restrict, ``/_control/prices`` are changed prices, ``/_control/interrupt`` evicts or
breaks a machine, ``/_control/events`` announces other scheduled events, ``/_control/throttling`` uses up budgets, ``/_control/operations``
loses operations, ``/_control/deletions`` has the next writes preempt deletions, ``/_control/locks`` locks resource groups,
``/_control/conditions`` are the conditions of the account. If its machines are nodes, ``/_control/plugins`` restarts device plugins,
``/_control/absent`` hides resources, and ``/_control/kubelets`` stops kubelets.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

import msgspec
from msgspec import Struct

from gpuscaler.embedded.azure.account import Account
from gpuscaler.embedded.azure.compute import capacity, interrupting
from gpuscaler.embedded.azure.conditions import Conditions
from gpuscaler.embedded.azure.hardware.refusals import LIMITED, Trouble
from gpuscaler.embedded.azure.making import restrict, set_limit, set_quota
from gpuscaler.embedded.azure.serving.faults import Fault, Faults
from gpuscaler.embedded.azure.serving.throttling import Throttling
from gpuscaler.embedded.azure.state import Machine, ScaleSet
from gpuscaler.embedded.azure.wire.requests import Answer, Reply, Request, encode
from gpuscaler.embedded.serving.conditions import check_market, values_of, with_changes

PATH: Final = "/_control/"


class Limit(Struct, frozen=True, forbid_unknown_fields=True):
    """Each matching market of a size in a zone has ``machines`` machines; None: unlimited. Requests beyond fail with ``code``."""

    machines: int | None
    market: str = ""
    size: str = ""
    zone: str = ""
    code: str = ""

    def __post_init__(self) -> None:
        check_market(self.market, LIMITED)


class Quota(Struct, frozen=True, forbid_unknown_fields=True):
    """A limit in vCPUs of a family, of ``cores`` or ``lowPriorityCores``."""

    name: str
    limit: int
    location: str = ""
    subscription: str = ""


class Restriction(Struct, frozen=True, forbid_unknown_fields=True):
    """``size`` is not offered in ``zones``, or in the whole location."""

    size: str
    zones: tuple[str, ...] = ()
    location: str = ""


class ChangedPrice(Struct, frozen=True, forbid_unknown_fields=True):
    """``size`` costs ``price`` dollars per hour."""

    size: str
    price: float
    location: str
    market: Literal["spot", "on-demand"] = "spot"


class Interruption(Struct, frozen=True, forbid_unknown_fields=True):
    """The machine named ``machine`` (of a node or a list) is evicted ``notice`` seconds from now, or breaks now."""

    machine: str
    notice: float = 30.0
    breaks: bool = False


class Announcement(Struct, frozen=True, forbid_unknown_fields=True):
    """A scheduled event of the machine named ``machine``, that begins ``seconds`` from now."""

    machine: str
    kind: Literal["Freeze", "Reboot", "Redeploy", "Preempt", "Terminate"]
    seconds: float = 900.0
    lasts: int = -1


class Used(Struct, frozen=True, forbid_unknown_fields=True):
    """A policy of Microsoft.Compute or a bucket of ARM (``reads``, ``writes``, ``deletes``) that is used up, for ``seconds``."""

    name: str
    seconds: float = 60.0


class Lock(Struct, frozen=True, forbid_unknown_fields=True):
    """``group`` is locked: by a lock, or, as node resource group of AKS, by its ``lockdown``."""

    group: str
    locked: bool = True
    lockdown: bool = False


class Service:
    """What the control path acts on."""

    def __init__(self, account: Account, faults: Faults, throttling: Throttling) -> None:
        self.account, self.faults, self.throttling = account, faults, throttling

    def handle(self, request: Request) -> Answer:
        """The answer to a request to the control path."""
        self.account.advance()
        name = request.path.removeprefix(PATH)
        node_acts: Mapping[str, Callable[[Any], Any]] = self.account.node_acts
        act = _ACTS.get(name)
        if act is None and name not in node_acts:
            text = f"saw {request.path}, expected one of {', '.join((*_ACTS, *node_acts))} below {PATH}"
            return encode(Reply({"message": text}, status=404), {})
        try:
            content = act(self, request) if act is not None else node_acts[name](request)
        except (msgspec.DecodeError, KeyError, ValueError) as error:
            return encode(Reply({"message": str(error)}, status=400), {})
        self.account.advance()
        return encode(Reply(content), {})

    def machine(self, name: str) -> tuple[ScaleSet, Machine]:
        """The machine of a name, as lists or nodes have it. Raises ValueError if there is none."""
        for scale_set in self.account.all_scale_sets():
            for machine in scale_set.machines.values():
                if name in {machine.name, machine.computer}:
                    return scale_set, machine
        raise ValueError(f"saw {name}, expected the name of a machine of this account")


def _faults(service: Service, request: Request) -> Any:
    if request.method == "PUT":
        service.faults.all.append(msgspec.json.decode(request.body, type=Fault))
    elif request.method == "DELETE":
        service.faults.all.clear()
    return msgspec.to_builtins(service.faults.all)


def _troubles(service: Service, request: Request) -> Any:
    troubles = service.account.hardware.troubles
    if request.method == "PUT":
        troubles.append(msgspec.json.decode(request.body, type=Trouble))
    elif request.method == "DELETE":
        troubles.clear()
    return msgspec.to_builtins(troubles)


def _capacity(service: Service, request: Request) -> Any:
    limits = service.account.hardware.markets.limits
    if request.method == "PUT":
        limit = msgspec.json.decode(request.body, type=Limit)
        set_limit(service.account, limit.machines, market=limit.market, size=limit.size, zone=limit.zone, code=limit.code)
    elif request.method == "DELETE":
        limits.clear()
    rows = ((market, size, zone, machines, code) for (market, size, zone), (machines, code) in limits.items())
    return [dict(zip(("market", "size", "zone", "machines", "code"), row, strict=True)) for row in rows]


def _quotas(service: Service, request: Request) -> Any:
    limits = service.account.limits
    if request.method == "PUT":
        quota = msgspec.json.decode(request.body, type=Quota)
        set_quota(service.account, quota.name, quota.limit, location=quota.location, subscription=quota.subscription)
    elif request.method == "DELETE":
        limits.clear()
    rows = ((*key, limit) for key, limit in limits.items())
    return [dict(zip(("subscription", "location", "name", "limit"), row, strict=True)) for row in rows]


def _restrictions(service: Service, request: Request) -> Any:
    account = service.account
    if request.method == "PUT":
        restriction = msgspec.json.decode(request.body, type=Restriction)
        restrict(account, restriction.size, restriction.zones, location=restriction.location)
    elif request.method == "DELETE":
        account.restrictions.clear()
        account.hardware.troubles[:] = [trouble for trouble in account.hardware.troubles if trouble.code != "SkuNotAvailable"]
    return [{"location": location, "size": size, "zones": zones} for (_, location, size), zones in account.restrictions.items()]


def _prices(service: Service, request: Request) -> Any:
    prices = service.account.prices
    if request.method == "PUT":
        changed = msgspec.json.decode(request.body, type=ChangedPrice)
        prices[changed.size.lower(), changed.location, changed.market] = changed.price
    elif request.method == "DELETE":
        prices.clear()
    rows = ((*key, price) for key, price in prices.items())
    return [dict(zip(("size", "location", "market", "price"), row, strict=True)) for row in rows]


def _interrupt(service: Service, request: Request) -> Any:
    interruption = msgspec.json.decode(request.body, type=Interruption)
    scale_set, machine = service.machine(interruption.machine)
    if interruption.breaks:
        interrupting.lose(service.account, scale_set, machine)
    else:
        interrupting.evict(service.account, scale_set, machine, notice=interruption.notice)
    return {"machine": machine.name}


def _events(service: Service, request: Request) -> Any:
    account = service.account
    if request.method == "PUT":
        wanted = msgspec.json.decode(request.body, type=Announcement)
        _, machine = service.machine(wanted.machine)
        account.announce(machine, wanted.kind, account.time + wanted.seconds, seconds=wanted.lasts)
    elif request.method == "DELETE":
        account.events.clear()
        account.incarnation += 1
    return [{"id": event.id, "kind": event.kind, "resources": event.resources} for event in account.events.values()]


def _throttling(service: Service, request: Request) -> Any:
    throttling = service.throttling
    if request.method == "PUT":
        used = msgspec.json.decode(request.body, type=Used)
        if used.name in throttling.arm:
            throttling.drain(used.name)
        else:
            throttling.close(used.name, used.seconds)
    elif request.method == "DELETE":
        throttling.reset()
    return dict(throttling.closed)


def _operations(service: Service, request: Request) -> Any:
    if request.method == "DELETE":
        service.account.forget_operations()
    return [{"id": operation.id, "status": operation.status} for operation in service.account.operations.values()]


def _deletions(service: Service, request: Request) -> Any:
    if request.method == "PUT":
        service.account.preempt_deletions = int(msgspec.json.decode(request.body))
    elif request.method == "DELETE":
        service.account.preempt_deletions = 0
    return service.account.preempt_deletions


def _locks(service: Service, request: Request) -> Any:
    groups = service.account.groups
    if request.method == "PUT":
        lock = msgspec.json.decode(request.body, type=Lock)
        found = [group for group in groups.values() if group.name.lower() == lock.group.lower()]
        if not found:
            raise ValueError(f"saw {lock.group}, expected a resource group of this account")
        for group in found:
            group.locked, group.read_only_for_users = lock.locked and not lock.lockdown, lock.locked and lock.lockdown
    elif request.method == "DELETE":
        for group in groups.values():
            group.locked = group.read_only_for_users = False
    for cluster in service.account.all_clusters():
        nodes = service.account.group(cluster.subscription, cluster.node_group)
        cluster.settings["nodeResourceGroupProfile"] = {"restrictionLevel": "ReadOnly" if nodes.read_only_for_users else "Unrestricted"}
    return [group.name for group in groups.values() if group.locked or group.read_only_for_users]


def _conditions(service: Service, request: Request) -> Any:
    account = service.account
    if request.method == "PUT":
        set_conditions(account, with_changes(account.conditions, msgspec.json.decode(request.body, type=dict[str, Any])))
    elif request.method == "DELETE":
        account.conditions = account.first_conditions
    return values_of(account.conditions)


def set_conditions(account: Account, conditions: Conditions) -> None:
    """Change conditions; lists begin to lag from what they show now."""
    if conditions.read_lag and not account.conditions.read_lag:
        for scale_set in account.all_scale_sets():
            scale_set.lists.clear()
            capacity.record_list(account, scale_set, at=account.time - conditions.read_lag)
    account.conditions = conditions


_ACTS: Final[Mapping[str, Callable[[Service, Request], Any]]] = {
    "faults": _faults,
    "troubles": _troubles,
    "capacity": _capacity,
    "quotas": _quotas,
    "restrictions": _restrictions,
    "prices": _prices,
    "interrupt": _interrupt,
    "events": _events,
    "throttling": _throttling,
    "operations": _operations,
    "deletions": _deletions,
    "locks": _locks,
    "conditions": _conditions,
}
