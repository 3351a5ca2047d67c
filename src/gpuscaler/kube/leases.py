"""Leader election over a Lease, with the rules and times of client-go, so that at most one process writes."""

import asyncio
import math
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from datetime import UTC, datetime
from random import Random
from typing import Any

import msgspec
import structlog

from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ApiError, Conflict, NotFound, Unreachable
from gpuscaler.kube.resources import LEASES

_LOG = structlog.get_logger(__name__)
#: A remaining time below this, in seconds, is too short for a renewal.
_MIN_REMAINING = 0.01
#: How long after its expiry a lease is taken over, in seconds; at most twice that.
_TAKEOVER_DELAY = 0.1


class NotLeaderError(Exception):
    """A write was stopped: the lease is not held, or not for long enough that the write surely ends before another process may lead."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseTimes:
    """The duration of a lease, the time after which a leader that cannot renew gives up, and the retry pause; client-go's, in seconds."""

    lease: float = 15.0
    renew: float = 10.0
    retry: float = 2.0

    def __post_init__(self) -> None:
        if not self.lease > self.renew > self.retry > 0:
            seen = f"lease {self.lease:g} s, renew {self.renew:g} s, retry {self.retry:g} s"
            raise ValueError(f"leader election: saw {seen}, expected lease > renew > retry > 0")


class LeaderElection:
    """Runs for leader under ``identity``, which no other process may ever have (the pod's name and something random).

    ``client`` must not be fenced by this election, since it writes the lease itself; it should have a rate limit of its own.
    ``clock`` is monotonic, in seconds, and should keep running while the machine sleeps; ``wall`` is the time of day as seconds since the
    epoch, which is written into the lease for people only. Times that others write are ignored: their lease is timed by our own clock from
    when we saw it change, so that clocks need not agree. ``holder`` is the last known leader; ``trouble`` is the current problem, else
    empty.
    """

    def __init__(
        self,
        client: Client,
        *,
        name: str,
        namespace: str,
        identity: str,
        clock: Callable[[], float],
        wall: Callable[[], float],
        random: Random,
        times: LeaseTimes | None = None,
    ) -> None:
        self.holder = ""
        self.trouble = ""
        self._client, self._name, self._namespace, self._identity = client, name, namespace, identity
        self._clock, self._wall, self._random, self._times = clock, wall, random, times or LeaseTimes()
        self._lease: dict[str, Any] | None = None
        #: Whether another process may have written since ``_lease`` was read.
        self._outdated = True
        #: Whether the lease may be ours, including through a write whose answer has not arrived.
        self._maybe_held = False
        #: When, by our clock, the lease's spec was last seen to change.
        self._changed_at = 0.0
        #: When the last renewal known to have succeeded was sent; None while this process is not the leader.
        self._renewed_at: float | None = None
        #: The leader that was last logged while this process waits.
        self._awaited = ""

    @property
    def is_leader(self) -> bool:
        return self._renewed_at is not None and self._clock() < self._renewed_at + self._times.renew

    def deadline(self) -> float:
        """Until when, by the clock, no other process can lead; minus infinity while this process does not lead.

        Others wait for the whole lease from when they saw it renewed, which is later than when the renewal was sent.
        """
        return self._renewed_at + self._times.lease if self._renewed_at is not None else float("-inf")

    def fence(self, timeout: float) -> None:
        """Raise :class:`NotLeaderError` unless a write that ends within ``timeout`` seconds from now ends before the deadline."""
        remaining = self.deadline() - self._clock()
        if remaining <= timeout:
            raise NotLeaderError(
                f"lease {self._namespace}/{self._name}: saw {max(remaining, 0):.1f} s left for {self._identity}, "
                f"expected more than {timeout:g} s; nothing was written"
            )

    async def run(self, lead: Callable[[], Coroutine[Any, Any, None]]) -> None:
        """Wait for leadership, then run ``lead``, and again each time that leadership was lost; returns or raises when ``lead`` does.

        ``lead`` is cancelled when leadership is lost. The lease is released at the end, even on cancellation, and only after ``lead`` has
        ended: all its writes must be over by then.
        """
        try:
            while True:
                while not self.is_leader:
                    await self._try_to_hold(self._times.renew / 2)
                    if not self.is_leader:
                        self._log_standby()
                        await asyncio.sleep(self._pause())
                self._awaited = ""
                leading = asyncio.create_task(lead(), name="lead")
                try:
                    await self._renew_while(leading)
                finally:
                    finished = leading.done()
                    leading.cancel()
                    await asyncio.wait([leading])
                if finished or (not leading.cancelled() and leading.exception() is not None):
                    leading.result()
                    return
        finally:
            await self._release()

    def _log_standby(self) -> None:
        """Log the leader that this process waits for, once for each leader: without this line, a process on standby seems to hang."""
        if self._held_by_other() and self.holder != self._awaited:
            self._awaited = self.holder
            _LOG.info(f"stands by: {self.holder} leads (Lease {self._namespace}/{self._name})", identity=self._identity)

    def _pause(self) -> float:
        """Seconds until the next try: client-go's pause, or until another's lease expires, so that at most 20 s pass without a leader."""
        jittered = self._times.retry * (1 + 1.2 * self._random.random())
        remaining = self._changed_at + self._lease_seconds() - self._clock()
        return min(jittered, remaining + _TAKEOVER_DELAY * (1 + self._random.random())) if self._held_by_other() else jittered

    def _held_by_other(self) -> bool:
        """Whether another process may lead, as far as we have seen."""
        return self.holder not in ("", self._identity) and self._clock() < self._changed_at + self._lease_seconds()

    async def _renew_while(self, leading: asyncio.Task[None]) -> None:
        """Renew until ``leading`` ends or leadership is lost."""
        while self._renewed_at is not None:
            remaining = self._renewed_at + self._times.renew - self._clock()
            if remaining < _MIN_REMAINING:
                self._renewed_at = None
                return
            await asyncio.wait([leading], timeout=min(remaining, self._times.retry))
            if leading.done():
                return
            remaining = self._renewed_at + self._times.renew - self._clock()
            if remaining >= _MIN_REMAINING:
                await self._try_to_hold(min(remaining, self._times.renew / 2))

    async def _try_to_hold(self, limit: float) -> None:
        """Try to acquire or renew the lease, within ``limit`` seconds."""
        try:
            async with asyncio.timeout(limit):
                try:
                    await self._acquire()
                except Conflict:
                    # Something else wrote between our read and our write, perhaps only an annotation: read again.
                    self._outdated = True
                    await self._acquire()
            self.trouble = ""
        except (ApiError, Unreachable, TimeoutError) as error:
            # It may be unknown whether a write took effect.
            self._outdated = True
            problem = str(error) or f"no answer within {limit:g} s"
            trouble = f"lease {self._namespace}/{self._name}: {problem}"
            if not self.trouble or (trouble != self.trouble and isinstance(error, ApiError)):
                # A process that does not lead writes no status, and may never lead.
                _LOG.warning("cannot acquire or renew the lease", problem=trouble)
            self.trouble = trouble

    async def _acquire(self) -> None:
        if self._renewed_at is None or self._outdated:
            try:
                self._observe(await self._client.get(LEASES, self._name, namespace=self._namespace))
            except NotFound:
                # Its last holder may not know yet that the lease was deleted.
                if not self._held_by_other():
                    self._lease, self.holder = None, ""
        if self._held_by_other():
            self._maybe_held, self._renewed_at = False, None
            return
        lease, sent = self._lease_body(self._identity), self._clock()
        # Until an answer shows the result, the lease may differ from the one that was read.
        self._maybe_held = self._outdated = True
        if self._lease is None:
            answer = await self._client.create(LEASES, lease, namespace=self._namespace)
        else:
            answer = await self._client.replace(LEASES, self._name, lease, namespace=self._namespace)
        self._observe(answer)
        self._renewed_at = sent

    def _observe(self, data: bytes) -> None:
        lease = _decode_lease(data)
        spec = lease["spec"]
        if self._lease is None or self._lease["spec"] != spec:
            self._changed_at = self._clock()
        self._lease, self._outdated = lease, False
        holder = spec.get("holderIdentity")
        self.holder = holder if isinstance(holder, str) else ""

    def _lease_seconds(self) -> float:
        """How long the holder keeps the lease after each renewal, according to the lease itself."""
        seconds = self._lease["spec"].get("leaseDurationSeconds") if self._lease else None
        return float(seconds) if isinstance(seconds, int) and seconds > 0 else self._times.lease

    def _lease_body(self, identity: str) -> dict[str, Any]:
        """The lease to write; other content of it is preserved."""
        lease = self._lease or {
            "apiVersion": "coordination.k8s.io/v1",
            "kind": "Lease",
            "metadata": {"name": self._name, "namespace": self._namespace},
            "spec": {},
        }
        spec = dict(lease["spec"])
        now = datetime.fromtimestamp(self._wall(), UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
        if identity and spec.get("holderIdentity") != identity:
            transitions = spec.get("leaseTransitions")
            # The first holder of a lease is no transition.
            spec["leaseTransitions"] = transitions + 1 if isinstance(transitions, int) else 0
            spec["acquireTime"] = now
        spec["holderIdentity"] = identity
        spec["leaseDurationSeconds"] = math.ceil(self._times.lease) if identity else 1
        spec["renewTime"] = now
        return {**lease, "spec": spec}

    async def _release(self) -> None:
        """Release the lease, even one acquired by a write without an answer: such a write may have been cancelled on its way."""
        self._renewed_at = None
        if not self._maybe_held:
            return
        try:
            async with asyncio.timeout(self._times.renew / 2):
                try:
                    await self._clear_holder()
                except Conflict:
                    self._outdated = True
                    await self._clear_holder()
        except NotFound:
            self.holder = ""
        except (ApiError, Unreachable, TimeoutError) as error:
            # Others wait until it expires.
            self.trouble = f"lease {self._namespace}/{self._name}: not released: {str(error) or 'no answer'}"

    async def _clear_holder(self) -> None:
        if self._outdated or self._lease is None:
            self._observe(await self._client.get(LEASES, self._name, namespace=self._namespace))
        if self.holder == self._identity:
            self._observe(await self._client.replace(LEASES, self._name, self._lease_body(""), namespace=self._namespace))
        self._maybe_held = False


def _decode_lease(data: bytes) -> dict[str, Any]:
    """A Lease with a spec, whatever else it contains."""
    try:
        lease = msgspec.json.decode(data, type=dict[str, Any])
    except msgspec.MsgspecError as error:
        raise Unreachable(f"saw {len(data)} bytes that are not a Lease in JSON ({error})") from error
    if not isinstance(lease.get("spec"), dict):
        lease["spec"] = {}
    if not isinstance(lease.get("metadata"), dict):
        raise Unreachable("saw an object without metadata, expected a Lease")
    return lease
