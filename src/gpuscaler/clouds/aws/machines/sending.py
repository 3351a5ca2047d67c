"""Sends a test message to the queue of announcements, and removes it again without taking other messages away from the controller."""

from typing import Any, Final

from gpuscaler.clouds.aws.api.asking import AsyncCalls
from gpuscaler.clouds.aws.machines.inbox import BATCH, region_of
from gpuscaler.clouds.aws.machines.notices import encode_test_message

#: How often the queue is read to find the message: one reply may lack messages that are there.
TRIES: Final = 5
#: What became of a message that nothing took: removed, not there any more, or maybe still there.
REMOVED, ABSENT, LEFT = "removed", "absent", "left"


class MessageSender:
    """One test message with the id ``ident`` to the queue at ``url``; ``region`` is that of a URL that names none."""

    def __init__(self, calls: AsyncCalls, url: str, ident: str, *, region: str) -> None:
        self._calls, self._url, self._ident = calls, url, ident
        self.region = region_of(url) or region
        self._message_id = ""

    async def send(self) -> None:
        """Send the message. Raises CloudError if it was not sent, LostAnswerError if that is unknown."""
        body = encode_test_message(self._ident, self._calls.now())
        reply = await self._calls.write("sqs", self.region, "SendMessage", QueueUrl=self._url, MessageBody=body)
        self._message_id = str(reply.get("MessageId") or "")

    async def remove(self) -> str:
        """Delete the message if it is still there; returns :data:`REMOVED`, :data:`ABSENT` or :data:`LEFT`. Raises CloudError.

        SQS deletes only what was received before. Other messages are received with it, and stay visible to the controller all the time.
        But each time counts: a queue with a redrive policy moves a message away that is received too often, so it is not read here.
        """
        attributes = await self._attributes()
        if "RedrivePolicy" in attributes:
            return LEFT if _is_filled(attributes) else ABSENT
        for _ in range(TRIES):
            reply = await self._calls.read(
                "sqs", self.region, "ReceiveMessage", QueueUrl=self._url, MaxNumberOfMessages=BATCH, VisibilityTimeout=0, WaitTimeSeconds=1
            )
            for message in reply.get("Messages") or ():
                if self._is_ours(message):
                    handle = message["ReceiptHandle"]
                    await self._calls.write("sqs", self.region, "DeleteMessage", QueueUrl=self._url, ReceiptHandle=handle)
                    return REMOVED
        return LEFT if _is_filled(await self._attributes()) else ABSENT

    def _is_ours(self, message: Any) -> bool:
        # Whether it was sent is unknown if the answer was lost; then it has no id here.
        return message.get("MessageId") == self._message_id or self._ident in (message.get("Body") or "")

    async def _attributes(self) -> Any:
        reply = await self._calls.read("sqs", self.region, "GetQueueAttributes", QueueUrl=self._url, AttributeNames=["All"])
        return reply.get("Attributes") or {}


def _is_filled(attributes: Any) -> bool:
    """Whether the queue has messages, waiting or received by another program."""
    counts = (attributes.get(f"ApproximateNumberOfMessages{state}", "0") for state in ("", "NotVisible", "Delayed"))
    return any(count != "0" for count in counts)
