"""The queue of announcements: each is reported once; unreadable ones and those about foreign machines are counted and dropped."""

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import urlsplit

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.machines.notices import Announcement, Hook, MalformedError, decode_message
from gpuscaler.clouds.protocol import TEST, CloudError, LostAnswerError

#: Messages per call, and concurrent calls, which are repeated while full batches come back; and the limit on these repetitions, in seconds.
BATCH, AT_ONCE, BUSY_SECONDS = 10, 8, 2.0
#: How long messages about unknown machines are kept, in seconds: the list of machines may be behind.
HELD_SECONDS: Final = 120.0
#: The most unknown machines for which messages are kept.
MAX_HELD: Final = 20_000
#: How long reported messages are remembered, in seconds: queues keep messages for minutes, and deliver them repeatedly.
REMEMBERED_SECONDS: Final = 900.0


@dataclass(slots=True)
class MessageCounts:
    """Counts of received messages, of those that could not be read, and of those about machines that are not ours."""

    messages: int = 0
    malformed: int = 0
    foreign: int = 0


class Inbox:
    """Reads the queue at ``url``. A message is deleted by the call after the one that reported it, so that no message gets lost.

    A message that cannot be read is deleted at once.

    ``delete_error`` is the last error of deleting messages, empty if there was none: such messages come again, and are recognised.
    """

    def __init__(self, calls: AsyncCalls, url: str, *, region: str) -> None:
        self.counts = MessageCounts()
        self.hooks: dict[str, Hook] = {}
        self.last_malformed = self.delete_error = ""
        self._calls, self._url, self._region = calls, url, region_of(url) or region
        self._processed: list[str] = []
        self._unreadable: list[str] = []
        self._held: dict[tuple[str, str], tuple[float, Announcement]] = {}
        self._reported: dict[tuple[str, str], float] = {}

    async def receive(self) -> None:
        """Read the queue. Raises CloudError."""
        done, self._processed = self._processed, []
        await self._delete(done)
        until = self._calls.now() + BUSY_SECONDS
        # An idle queue is read once; once it returns anything, even a few messages, it is read concurrently.
        at_once = 1
        while True:
            sizes = await asyncio.gather(*(self._receive_batch() for _ in range(at_once)))
            # An unreadable message holds nothing that could get lost: it is deleted before anything else can fail on it.
            unreadable, self._unreadable = self._unreadable, []
            await self._delete(unreadable)
            if not any(sizes) or (at_once > 1 and min(sizes) < BATCH) or self._calls.now() >= until:
                return
            at_once = AT_ONCE

    async def _receive_batch(self) -> int:
        reply = await self._calls.read(
            "sqs", self._region, "ReceiveMessage", QueueUrl=self._url, MaxNumberOfMessages=BATCH, WaitTimeSeconds=0
        )
        messages = reply.get("Messages") or ()
        for message in messages:
            self._receive_message(message)
        return len(messages)

    def _receive_message(self, message: Mapping[str, Any]) -> None:
        self.counts.messages += 1
        try:
            announcements = decode_message(message.get("Body") or "")
        except MalformedError as error:
            self._unreadable.append(message["ReceiptHandle"])
            self.counts.malformed += 1
            self.last_malformed = str(error)
            return
        self._processed.append(message["ReceiptHandle"])
        for announcement in announcements:
            self._held.setdefault((announcement.kind, announcement.instance), (self._calls.now(), announcement))
            if len(self._held) > MAX_HELD:
                # Senders may name any number of machines; the oldest unknown one is taken to be foreign.
                self._held.pop(next(iter(self._held)))
                self.counts.foreign += 1
            if announcement.hook is not None:
                self.hooks[announcement.instance] = announcement.hook

    def take_announcements(self, ours: Iterable[str]) -> list[Announcement]:
        """New messages about machines in ``ours``, EC2 ids, and test messages; messages about foreign machines expire."""
        now, our_ids = self._calls.now(), set(ours)
        self._reported = {key: at for key, at in self._reported.items() if now < at + REMEMBERED_SECONDS}
        announcements = []
        for key, (since, announcement) in list(self._held.items()):
            if announcement.instance in our_ids or announcement.kind == TEST:
                del self._held[key]
                if key not in self._reported:
                    announcements.append(announcement)
                self._reported[key] = now
            elif now >= since + HELD_SECONDS:
                del self._held[key]
                self.hooks.pop(announcement.instance, None)
                self.counts.foreign += key not in self._reported
        return announcements

    async def _delete(self, done: Sequence[str]) -> None:
        """Delete messages that were reported or unreadable. A message that stays comes again, and is recognised."""
        batches = [done[first : first + BATCH] for first in range(0, len(done), BATCH)]
        try:
            for first in range(0, len(batches), AT_ONCE):
                await asyncio.gather(*(self._delete_batch(handles) for handles in batches[first : first + AT_ONCE]))
        except (CloudError, LostAnswerError) as error:
            # An announcement must not wait for the deletion: a machine may have only two minutes left.
            self.delete_error = str(error)
        else:
            self.delete_error = "" if done else self.delete_error

    async def _delete_batch(self, handles: Sequence[str]) -> None:
        entries = [{"Id": str(number), "ReceiptHandle": handle} for number, handle in enumerate(handles)]
        await self._calls.write("sqs", self._region, "DeleteMessageBatch", QueueUrl=self._url, Entries=entries)


def region_of(url: str) -> str:
    """The region that a queue's URL names, empty if it names none."""
    host = (urlsplit(url).hostname or "").split(".")
    return host[1] if len(host) > 2 and host[0] == "sqs" else ""
