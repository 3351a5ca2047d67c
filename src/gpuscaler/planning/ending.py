"""Machines that are reserved until a known moment: they are emptied before it, and none is bought that would have to be emptied at once."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime

from msgspec.structs import replace

from gpuscaler.model.pods import Pod
from gpuscaler.model.pools import Policy, Pool
from gpuscaler.planning.roll import Listed
from gpuscaler.planning.state import State
from gpuscaler.planning.state.events import Key

#: A machine is emptied from so long before its end, in seconds: longer than it takes another to boot in its place. Where its pods save
#: their work first it begins earlier by the time that they ask for, up to the second.
EMPTY_SECONDS, SAVE_SECONDS = 1800.0, 1800.0
#: None is bought that would have less time than this until it may have to be emptied: as long as a change of machine counts.
WORTH_SECONDS = 900.0
WHY = "the time that it is reserved for ends"


def remembered(known: Mapping[str, float], listed: Listed) -> Mapping[str, float]:
    """When machines end, by id, as far as the cloud has ever said so of those that it lists: what its group reserves later says no more."""
    if listed.instances is None or not (known or listed.ends):
        return known
    return {**{name: at for name, at in known.items() if name in listed.by_id}, **listed.ends}


def is_due(ends: float, pods: Iterable[Pod], now: float) -> bool:
    """Whether a machine that ends at ``ends`` is to be emptied of ``pods`` from ``now`` on."""
    saving = max(((pod.options.grace or 0.0) + pod.spec.grace_seconds for pod in pods), default=0.0)
    return now >= ends - EMPTY_SECONDS - min(saving, SAVE_SECONDS)


def closing(pools: Iterable[Pool]) -> Mapping[Key, float]:
    """The last moment at which each offering that ends may be bought."""
    return {one.key: one.ends - EMPTY_SECONDS - SAVE_SECONDS - WORTH_SECONDS for pool in pools for one in pool.offerings if one.ends}


def without_closed(state: State, closes: Mapping[Key, float], now: float) -> State:
    """``state`` in which nothing is asked for that is about to end."""
    closed = frozenset(key for key, at in closes.items() if now > at)
    return replace(state, blocked_offerings=state.blocked_offerings | closed) if closed else state


def told(policy: Policy, key: Key, now: float) -> str:
    """Why an offering that is about to end is not bought; empty where it is not."""
    for one in (one for pool in policy.pools if pool.name == key[0] for one in pool.offerings if one.key == key and one.ends):
        if now > closing((Pool(key[0], (one,)),))[key]:
            until = datetime.fromtimestamp(one.ends, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
            return f"{one.market} {one.instance_type} {one.zone}: machines of it last until {until}, which is too soon to buy one"
    return ""
