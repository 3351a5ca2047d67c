"""The queue that announcements come through: each is told once, what is about others' machines or makes no sense is counted and dropped."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gpuscaler.clouds.aws.api.asking import Asking
from gpuscaler.clouds.aws.machines.notices import Hook, MalformedError, Said, said
from gpuscaler.clouds.protocol import CloudError, LostAnswerError

#: A call brings so many messages; so many calls are made side by side, as long as full ones come back, for so many seconds.
BATCH, AT_ONCE, BUSY_SECONDS = 10, 8, 2.0
#: What is said of a machine that nobody knows is kept for so long, in seconds: the list of machines may be behind.
HELD_SECONDS: Final = 120.0
#: Of so many machines that nobody knows at most.
MOST_HELD: Final = 20_000
#: What was told is remembered for so long, in seconds: queues keep messages for minutes, and repeat them.
REMEMBERED: Final = 900.0


@dataclass(slots=True)
class Counts:
    """Messages that came, and of them those that could not be read, and those about machines that are not ours."""

    messages: int = 0
    malformed: int = 0
    foreign: int = 0


class Inbox:
    """Reads the queue at ``url``. A message is deleted by the call after the one that reported it, so that none is lost on the way.

    A message that makes no sense is deleted at once.

    ``undeleted`` says why messages could not be deleted last, empty where they were: they come again, and are known.
    """

    def __init__(self, ask: Asking, url: str, *, region: str) -> None:
        self.counts = Counts()
        self.hooks: dict[str, Hook] = {}
        self.odd = self.undeleted = ""
        self._ask, self._url, self._region = ask, url, region_of(url) or region
        self._done: list[str] = []
        self._senseless: list[str] = []
        self._held: dict[tuple[str, str], tuple[float, Said]] = {}
        self._told: dict[tuple[str, str], float] = {}

    async def receive(self) -> None:
        """Take what the queue has. Raises CloudError."""
        done, self._done = self._done, []
        await self._delete(done)
        until = self._ask.now() + BUSY_SECONDS
        # An idle queue is asked once; one that has something, however little shows at first, then by several at once.
        at_once = 1
        while True:
            sizes = await asyncio.gather(*(self._batch() for _ in range(at_once)))
            # What makes no sense tells nothing that could get lost: it goes before anything else can stumble over it.
            senseless, self._senseless = self._senseless, []
            await self._delete(senseless)
            if not any(sizes) or (at_once > 1 and min(sizes) < BATCH) or self._ask.now() >= until:
                return
            at_once = AT_ONCE

    async def _batch(self) -> int:
        reply = await self._ask.read(
            "sqs", self._region, "ReceiveMessage", QueueUrl=self._url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=0
        )
        messages = reply.get("Messages") or ()
        for message in messages:
            self._take(message)
        return len(messages)

    def _take(self, message: Mapping[str, Any]) -> None:
        self.counts.messages += 1
        try:
            found = said(message.get("Body") or "")
        except MalformedError as error:
            self._senseless.append(message["ReceiptHandle"])
            self.counts.malformed += 1
            self.odd = str(error)
            return
        self._done.append(message["ReceiptHandle"])
        for one in found:
            self._held.setdefault((one.kind, one.instance), (self._ask.now(), one))
            if len(self._held) > MOST_HELD:
                # Whoever may send to the queue may name machines without end; the oldest is that of nobody here.
                self._held.pop(next(iter(self._held)))
                self.counts.foreign += 1
            if one.hook is not None:
                self.hooks[one.instance] = one.hook

    def told(self, ours: Iterable[str]) -> list[Said]:
        """What was said of machines among ``ours``, EC2's ids, and not told before; what others' machines are about is dropped in time."""
        now, known = self._ask.now(), set(ours)
        self._told = {key: at for key, at in self._told.items() if now < at + REMEMBERED}
        found = []
        for key, (since, one) in list(self._held.items()):
            if one.instance in known:
                del self._held[key]
                if key not in self._told:
                    found.append(one)
                self._told[key] = now
            elif now >= since + HELD_SECONDS:
                del self._held[key]
                self.hooks.pop(one.instance, None)
                self.counts.foreign += key not in self._told
        return found

    async def _delete(self, done: Sequence[str]) -> None:
        """Delete what was told, or made no sense. One that stays comes again, and is known."""
        some = [done[first : first + BATCH] for first in range(0, len(done), BATCH)]
        try:
            for first in range(0, len(some), AT_ONCE):
                await asyncio.gather(*(self._forget(handles) for handles in some[first : first + AT_ONCE]))
        except (CloudError, LostAnswerError) as error:
            # What is announced does not wait for that: a machine has two minutes.
            self.undeleted = str(error)
        else:
            self.undeleted = "" if done else self.undeleted

    async def _forget(self, handles: Sequence[str]) -> None:
        entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
        await self._ask.write("sqs", self._region, "DeleteMessageBatch", QueueUrl=self._url, Entries=entries)


def region_of(url: str) -> str:
    """The region that a queue's URL names, empty where it names none."""
    host = (urlsplit(url).hostname or "").split(".")
    return host[1] if len(host) > 2 and host[0] == "sqs" else ""
