"""One side of the contract: a subscription in which the script runs, and everything that must be deleted at the end."""

import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Final
from urllib.parse import quote, urlencode

import msgspec
from tests.embedded.azure.contract.comparing import HEADERS, LIMITS

from gpuscaler.clouds.azure.api.arm import COMPUTE
from gpuscaler.clouds.azure.api.credentials import Credentials
from gpuscaler.clouds.azure.api.http import BrokenError, Http, HttpReply, UnsentError
from gpuscaler.clouds.azure.api.throttling import retry_after_of
from gpuscaler.clouds.protocol import CloudError

#: Everything that the script creates has this tag, with the name of the run.
TAG: Final = "gpuscaler-contract"
RESOURCES, NETWORK = "2021-04-01", "2024-05-01"
#: The longest wait of a throttled call, the seconds between two looks at something, and how long an answer may take.
_LONGEST_WAIT, LOOK_SECONDS, _ANSWER_SECONDS = 120.0, 5.0, 60.0
_TRIES: Final = 5


class Skipped(Exception):  # noqa: N818  # Not an error: a step that cannot be played in this subscription.
    """A step cannot be played here, for this reason."""


class StoppedError(Exception):
    """The script ends early, for this reason."""


@dataclass(frozen=True, slots=True)
class Exchange:
    """The answer to one call; names of headers are in lower case."""

    status: int
    headers: Mapping[str, str]
    body: Any

    def shown(self, *, body: bool = True, limits: bool = False) -> dict[str, Any]:
        """What is compared: the status, headers that matter, and the body, if wanted. An error's body always is."""
        headers = {name: value for name, value in self.headers.items() if name in HEADERS or (limits and name.startswith(LIMITS))}
        shown: dict[str, Any] = {"status": self.status, "headers": headers}
        if (body or self.status >= 400) and self.body is not None:
            shown["body"] = self.body
        return shown

    @property
    def fields(self) -> dict[str, Any]:
        """The body; empty if it is no object."""
        return self.body if isinstance(self.body, dict) else {}

    @property
    def properties(self) -> dict[str, Any]:
        found = self.fields.get("properties")
        return found if isinstance(found, dict) else {}

    @property
    def values(self) -> list[Any]:
        """The items of a list."""
        found = self.fields.get("value")
        return found if isinstance(found, list) else []


@dataclass(slots=True, kw_only=True)
class Side:
    """``wait`` lets seconds pass on the clock ``now``. All calls go through ``http`` to ``endpoint``.

    ``run`` is the name of the run and the beginning of all names; it is also that of the resource ``group`` if ``own_group``. Machines are
    of ``size``, in ``subnet`` ("": a network is created); the quota of ``refused_size`` has no room for one machine. ``cluster`` is the id
    of an AKS cluster in which a pool may be created, "" if there is none. ``break_machines`` makes the next on-demand machine's extension
    fail, where it does not do so by itself. No step goes on after the ``deadline``. ``undo`` deletes what was created, the newest first.
    ``notes`` are remarks of the current step that are shown, but not compared.
    """

    http: Http
    credentials: Credentials
    endpoint: str
    subscription: str
    location: str
    run: str
    group: str
    own_group: bool
    size: str
    subnet: str = ""
    refused_size: str = ""
    cluster: str = ""
    password: str = ""
    now: Callable[[], float] = time.time
    wait: Callable[[float], Awaitable[None]]
    break_machines: Callable[[], None] = lambda: None
    deadline: float = float("inf")
    notes: list[str] = field(default_factory=list)
    undo: dict[str, Callable[[], Awaitable[Exchange]]] = field(default_factory=dict)

    # Names

    @property
    def group_path(self) -> str:
        return f"/subscriptions/{self.subscription}/resourceGroups/{self.group}"

    def path(self, kind: str, name: str) -> str:
        """The path of a resource of the run: ``kind`` is such as Microsoft.Compute/virtualMachineScaleSets."""
        return f"{self.group_path}/providers/{kind}/{name}"

    def scale_set(self, name: str) -> str:
        """The path of the run's scale set called ``name``."""
        return self.path("Microsoft.Compute/virtualMachineScaleSets", f"{self.run}-{name}")

    @property
    def pool(self) -> str:
        """The path of the pool of the run in the cluster."""
        return f"{self.cluster}/agentPools/c{self.run[-8:]}"

    @property
    def known(self) -> dict[str, str]:
        """Names of this side, and what they are called in both."""
        # The password is never printed, not even in a difference.
        return {self.subscription: "SUBSCRIPTION", self.subnet: "SUBNET", self.run: "RUN", self.password: "PASSWORD"}

    # Calls

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        version: str = COMPUTE,
        headers: Mapping[str, str] | None = None,
        parameters: Mapping[str, str] | None = None,
    ) -> Exchange:
        """One call, as gpuscaler makes it, but with any answer as a result. Throttled calls and broken reads are repeated.

        ``path`` may be a whole URL, which has its version. Raises CloudError without a token, :class:`StoppedError` if there is no answer.
        """
        url = path
        if not path.startswith("http"):
            query = urlencode({**({"api-version": version} if version else {}), **(parameters or {})}, quote_via=quote, safe="$")
            url = f"{self.endpoint}{quote(path, safe='/-._~()@:')}{'?' if query else ''}{query}"
        content = b"" if body is None else msgspec.json.encode(body)
        for attempt in range(_TRIES):
            token = await self.credentials.token()
            sent = {"authorization": f"Bearer {token}", **(headers or {})}
            if content:
                sent["content-type"] = "application/json"
            try:
                reply = await self.http.request(method, url, headers=sent, body=content, seconds=_ANSWER_SECONDS)
            except (UnsentError, BrokenError) as error:
                if attempt == _TRIES - 1 or (method != "GET" and isinstance(error, BrokenError)):
                    raise StoppedError(f"{method} {path.partition('?')[0]}: {error}") from error
                await self.wait(LOOK_SECONDS)
                continue
            if reply.status == 401:
                self.credentials.reject(token)
            if reply.status not in (401, 429) or attempt == _TRIES - 1:
                return _exchange(reply)
            if reply.status == 429:
                await self.wait(min(retry_after_of(reply.headers, self.now()) or LOOK_SECONDS, _LONGEST_WAIT))
        raise AssertionError("the last try returns or raises")

    async def get(self, path: str, *, version: str = COMPUTE, parameters: Mapping[str, str] | None = None) -> Exchange:
        return await self.call("GET", path, version=version, parameters=parameters)

    async def look(self) -> None:
        """Wait a little. Raises :class:`StoppedError` after the deadline."""
        if self.now() > self.deadline:
            raise StoppedError("the time is over that the cost limit assumes, or that the access token is valid")
        await self.wait(LOOK_SECONDS)

    async def until(self, done: Callable[[], Awaitable[bool]], seconds: float) -> bool:
        """Wait until ``done``, for at most that many seconds; returns whether it is."""
        end = self.now() + seconds
        while not await done():
            if self.now() >= end:
                return False
            await self.look()
        return True

    async def follow(self, accepted: Exchange, seconds: float, watch: Callable[[], Awaitable[None]] | None = None) -> dict[str, Any]:
        """How an operation goes on, at each of the URLs that ``accepted`` names: the first answer, the statuses, the last answer.

        ``watch`` is called at each look.
        """
        urls = {name: accepted.headers[name] for name in ("azure-asyncoperation", "location") if accepted.headers.get(name)}
        seen: dict[str, list[Exchange]] = {name: [await self.get(url)] for name, url in urls.items()}

        async def ended() -> bool:
            if watch is not None:
                await watch()
            for name, url in urls.items():
                if _runs(seen[name][-1]):
                    seen[name].append(await self.get(url))
            return not any(_runs(answers[-1]) for answers in seen.values())

        over = await self.until(ended, seconds)
        shown: dict[str, Any] = {}
        for name, answers in seen.items():
            statuses = [f"{answer.status} {answer.fields.get('status', '')}".strip() for answer in answers]
            distinct = [status for number, status in enumerate(statuses) if number == 0 or statuses[number - 1] != status]
            shown[name] = {"first": answers[0].shown(), "statuses": distinct, "last": answers[-1].shown()}
        return {**shown, "over": over}

    # Cleaning

    def later(
        self, what: str, path: str, *, version: str = COMPUTE, inside: bool = True, parameters: Mapping[str, str] | None = None
    ) -> None:
        """Register how the resource at ``path`` is deleted, before it is created. What is ``inside`` of an own group goes with it."""
        if not (inside and self.own_group):
            self.undo.setdefault(what, lambda: self.call("DELETE", path, version=version, parameters=parameters))

    async def clean(self, seconds: float = 1800.0) -> list[str]:
        """Delete everything that was created, and wait for it; returns what could not be deleted."""
        self.deadline = float("inf")
        left = []
        while self.undo:
            what, undo = self.undo.popitem()
            try:
                answer = await self._deleted(undo, self.now() + seconds)
            except (StoppedError, CloudError) as error:
                left.append(f"{what}: {error}")
                continue
            if answer.status not in (200, 204, 404):
                left.append(f"{what}: {answer.status} {answer.body or ''}")
        return left

    async def _deleted(self, undo: Callable[[], Awaitable[Exchange]], end: float) -> Exchange:
        """The last answer about a deletion; it is repeated while something else that runs forbids it."""
        while True:
            answer = await undo()
            if answer.status == 202:
                ended = await self.follow(answer, max(0.0, end - self.now()))
                return Exchange(200, {}, None) if ended["over"] else Exchange(202, {}, "it is still being deleted")
            code = str((answer.fields.get("error") or answer.fields).get("code", ""))
            if self.now() > end or not (answer.status == 409 or code.startswith("InUse")):
                return answer
            await self.wait(LOOK_SECONDS)

    async def remaining(self) -> list[str]:
        """Resources of the run that still exist."""
        tagged = {"$filter": f"tagName eq '{TAG}' and tagValue eq '{self.run}'"}
        listed = await self.get(f"/subscriptions/{self.subscription}/resources", version=RESOURCES, parameters=tagged)
        groups = await self.get(f"/subscriptions/{self.subscription}/resourcegroups", version=RESOURCES, parameters=tagged)
        return [str(item.get("id")) for item in (*groups.values, *listed.values)]


def _runs(answer: Exchange) -> bool:
    """Whether an operation's answer says that it goes on."""
    status = answer.fields.get("status")
    return answer.status == 202 or (
        answer.status == 200 and isinstance(status, str) and status not in ("Succeeded", "Failed", "Canceled", "Cancelled")
    )


def _exchange(reply: HttpReply) -> Exchange:
    try:
        body = msgspec.json.decode(reply.body) if reply.body.strip() else None
    except msgspec.DecodeError:
        body = reply.body[:500].decode("utf-8", "replace")
    return Exchange(reply.status, reply.headers, body)
