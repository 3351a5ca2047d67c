"""The memory of the controller, as plain data, and the part of it that the planner reads."""

from collections.abc import Mapping
from typing import TypeVar

from msgspec import Struct
from msgspec.structs import replace

from gpuscaler.lifecycle import scale_in_protection
from gpuscaler.lifecycle.node_health import device_plugins, unready
from gpuscaler.lifecycle.node_health.device_plugins import AbsentDevices
from gpuscaler.lifecycle.node_health.unready import Unready
from gpuscaler.lifecycle.quarantine import Poison
from gpuscaler.lifecycle.registration.undescribed import unordered_unfamiliar, with_stops
from gpuscaler.lifecycle.registration.unshown_resources import unproven_machines
from gpuscaler.lifecycle.scale_in_protection import Guarding
from gpuscaler.lifecycle.steering import windows
from gpuscaler.lifecycle.steering.binding import Unbinding
from gpuscaler.lifecycle.steering.rejected_pods import Admissions
from gpuscaler.lifecycle.steering.windows import Window
from gpuscaler.model.offerings import OfferingKey
from gpuscaler.model.pools import Policy
from gpuscaler.planning.state import State, breakers, failed_removals, fruitless_purchases, idle_clocks, node_refusals, promises
from gpuscaler.planning.state.askable_offerings import with_breakers
from gpuscaler.planning.state.boot_times import Boots
from gpuscaler.planning.state.breakers import Breakers
from gpuscaler.planning.state.failed_removals import SparedNodes
from gpuscaler.planning.state.fruitless_purchases import PurchaseAttempts
from gpuscaler.planning.state.idle_clocks import IdleClocks
from gpuscaler.planning.state.learned_templates import Learned
from gpuscaler.planning.state.ledger import ledger
from gpuscaler.planning.state.ledger.ledger import Ledger, Order, OrderedMachine, Promise, Removal, Withdrawal
from gpuscaler.planning.state.node_refusals import Refusals
from gpuscaler.planning.state.promises import Promises

Dated = TypeVar("Dated", Order, OrderedMachine, Promise, Removal, Withdrawal)


#: The names under which fields of :class:`Memory` are stored, where they differ.
_STORED_NAMES = {"maintenance_at": "worked_on", "absent_devices": "away", "purchase_attempts": "efforts"}


class Memory(Struct, frozen=True, gc=False, rename=_STORED_NAMES):
    """The state that survives restarts.

    ``decisions`` is how many decisions have been numbered; ``decided`` are the ids of the decisions in progress, by order and by node.
    ``maintenance_at`` is when the cloud will work on machines, as announced, by id, and ``ends`` when their reserved time ends.
    ``unfamiliar`` are machines, by id, with keys that their pools do not offer. ``poison`` are objects that make planning fail.
    ``unready`` has the nodes that are not Ready, ``absent_devices`` the nodes whose devices are missing, by name. ``purchase_attempts`` are
    machines whose pods are still pending. ``unbinding`` are pools where bindings were refused, ``admissions`` the pods that were bound but
    not admitted by a kubelet yet. ``windows`` has the closed nodes with a window, in which they admit DaemonSet pods.
    ``node_events`` are the scheduled events of nodes that were reported, by the machine's id.
    """

    ledger: Ledger = Ledger()
    breakers: Breakers = Breakers()
    promises: Promises = Promises()
    learned: Learned = Learned()
    boots: Boots = Boots()
    clocks: IdleClocks = IdleClocks()
    refusals: Refusals = Refusals()
    decisions: int = 0
    decided: Mapping[str, str] = {}
    spared: SparedNodes = SparedNodes()
    maintenance_at: Mapping[str, float] = {}
    ends: Mapping[str, float] = {}
    unfamiliar: Mapping[str, OfferingKey] = {}
    purchase_attempts: PurchaseAttempts = PurchaseAttempts()
    poison: tuple[Poison, ...] = ()
    unready: Unready = Unready()
    guarding: Guarding = Guarding()
    absent_devices: Mapping[str, AbsentDevices] = {}
    unbinding: Mapping[str, Unbinding] = {}
    admissions: Admissions = Admissions()
    windows: Mapping[str, Window] = {}
    node_events: Mapping[str, str] = {}


def vanishing_nodes(memory: Memory) -> frozenset[str]:
    """Return the nodes that are removed because the cloud takes their machines away."""
    return frozenset(removal.node for removal in memory.ledger.leaving if removal.forced)


def state_of(memory: Memory, policy: Policy, now: float) -> State:
    """Return what :class:`~gpuscaler.planning.planner.Planner` reads of ``memory`` at ``now``."""
    current = memory.ledger
    doubted = unproven_machines(current, memory.breakers)
    state = State(
        upcoming=tuple(
            replace(upcoming, unproven=True) if upcoming.id in doubted else upcoming for upcoming in ledger.upcoming_machines(current)
        ),
        idle_seconds=idle_clocks.idle_seconds(memory.clocks, now),
        paused_offerings=promises.paused_offerings(memory.promises, now),
        refusing=node_refusals.avoided_nodes(memory.refusals, now),
        bought_last_minute=sum(count for at, count in current.bought if at > now - 60.0),
        disrupting=frozenset(removal.node for removal in current.leaving),
        spared=failed_removals.spared_reasons(memory.spared, now),
        vanishing=vanishing_nodes(memory),
        broken_promises=frozenset(pod for pod, _ in current.broken),
        promised=ledger.pods_by_promised_node(current),
        ending=unready.ending(memory.unready),
        unbalancing=scale_in_protection.unbalancing_offerings(memory.guarding, policy),
    )
    keys = list(policy.offerings)
    return with_breakers(state, breakers_of(memory, policy, now), keys, now)


def breakers_of(memory: Memory, policy: Policy, now: float) -> Breakers:
    """Return the breakers that stop purchases at ``now``: after refusals, for unfamiliar machines, and too many fruitless purchases."""
    breakers = fruitless_purchases.with_hourly_breakers(memory.breakers, memory.purchase_attempts, policy.limits.fruitless_per_hour, now)
    return with_stops(breakers, {**unordered_unfamiliar(memory.ledger, policy), **memory.unfamiliar}, now)


def recalled(memory: Memory, now: float) -> Memory:
    """Return ``memory`` after it was read at ``now``. Timestamps after ``now``, from another clock, become ``now``.

    Orders that were saved without an answer become doubtful, because they may have been sent.
    """
    current = memory.ledger
    current = replace(
        current,
        orders=tuple(_not_ahead(order, now) for order in current.orders),
        coming=tuple(_not_ahead(machine, now) for machine in current.coming),
        promises=tuple(_not_ahead(promise, now) for promise in current.promises),
        leaving=tuple(_not_ahead(removal, now) for removal in current.leaving),
        withdrawals=tuple(_not_ahead(withdrawal, now) for withdrawal in current.withdrawals),
        unregistered={name: min(since, now) for name, since in current.unregistered.items()},
        launches_expected_since={name: min(since, now) for name, since in current.launches_expected_since.items()},
        bought=tuple((min(at, now), count) for at, count in current.bought),
    )
    current = ledger.fold_events(current, (ledger.Doubted(order.token, now) for order in current.orders if order.state != ledger.ACCEPTED))
    idle = IdleClocks({name: min(since, now) for name, since in memory.clocks.since.items()})
    open_breakers = breakers.complete_stored(memory.breakers)
    unready_nodes, absent_devices = unready.recalled(memory.unready, now), device_plugins.recalled(memory.absent_devices, now)
    memory = replace(memory, guarding=scale_in_protection.recalled(memory.guarding, now))
    memory = replace(memory, windows=windows.recalled(memory.windows, now))
    return replace(memory, ledger=current, clocks=idle, breakers=open_breakers, unready=unready_nodes, absent_devices=absent_devices)


def _not_ahead(order: Dated, now: float) -> Dated:
    """Return ``order`` without timestamps after ``now``, except for ``ends``, which the cloud sets. Other numbers are never that large."""
    fields = {name: getattr(order, name) for name in order.__struct_fields__}
    late = {name: now for name, value in fields.items() if isinstance(value, float) and value > now and name != "ends"}
    return replace(order, **late) if late else order
