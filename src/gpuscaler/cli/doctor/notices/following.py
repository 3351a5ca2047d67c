"""Sends a test message to the queue of notices, waits for the controller's receipt, and cleans up."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass

from gpuscaler.cli.leading import NotInstalledError, read_status, why_no_controller
from gpuscaler.clouds.aws.api.calls import DeniedError
from gpuscaler.clouds.aws.machines.sending import ABSENT, LEFT, MessageSender
from gpuscaler.clouds.protocol import CloudError, LostAnswerError
from gpuscaler.control.records.words import format_duration
from gpuscaler.kube.client import Client
from gpuscaler.kube.errors import ServerError, TooManyRequests, Unreachable

#: Seconds between two reads of the controller's status, and how long a receipt is waited for. The queue is read every 2 s, and a changed
#: status is written after 10 s; the rest is for slow answers of either side.
PAUSE, PATIENCE = 2.0, 60.0
#: Results: the controller has the message, it did not take it, there is no controller, IAM does not allow sending, AWS does not answer.
RECEIVED, NOT_RECEIVED, NO_CONTROLLER, DENIED, NOT_SENT = "received", "not-received", "no-controller", "denied", "not-sent"
#: What is proved once the message is sent, and once it is received.
PROVED = ("the queue exists, and this identity may send to it", "the controller receives messages from the queue")
#: PutEvents refuses events with a source that begins with "aws.".
NOT_PROVED = (
    "that EventBridge sends the notices of EC2 to the queue: only AWS can make such events; the check D33 looks at the rules, and at the "
    "policy and key of the queue"
)


@dataclass(slots=True)
class MessageRun:
    """One run with the controller whose objects are in ``namespace``; ``now`` is this machine's wall clock.

    Then ``result`` and ``text`` are what was found, ``took`` the seconds from sending to the receipt, ``proved`` how many of
    :data:`PROVED` are proved, and ``left`` what became of the message if no receipt came.
    """

    client: Client
    sender: MessageSender
    ident: str
    namespace: str
    now: Callable[[], float]
    say: Callable[[str], None]
    result: str = ""
    text: str = "interrupted"
    proved: int = 0
    took: float | None = None
    left: str = ""

    async def run(self) -> None:
        """Run the test; the message is removed also if the run is cancelled. Raises ApiError and Unreachable."""
        # Nothing is sent that nothing can take.
        if stopped := await why_no_controller(self.client, self.namespace, now=self.now()):
            self.result, self.text = NO_CONTROLLER, f"{stopped}; nothing was sent"
            return
        # A message that may have been sent is removed, too: the call is never cut off.
        sending = asyncio.ensure_future(self._send())
        try:
            if await asyncio.shield(sending):
                await self._await_receipt()
        finally:
            await asyncio.wait([sending])
            if sending.result() and self.result != RECEIVED:
                await self._remove()

    async def _send(self) -> bool:
        """Send the message; whether it may be in the queue."""
        try:
            await self.sender.send()
        except DeniedError as error:
            self.result, self.text = DENIED, f"{error.detail}; for this command, your own identity needs it, the controller's does not"
            return False
        except CloudError as error:
            self.result, self.text = NOT_SENT, f"the message could not be sent: {error.detail}"
            return False
        except LostAnswerError as error:
            self.say(f"it is unknown whether the message was sent: {error}")
        else:
            self.proved = 1
        self.result = NOT_RECEIVED
        return True

    async def _await_receipt(self) -> None:
        clock = asyncio.get_running_loop().time
        began = clock()
        self.say(f"Sent test message {self.ident}; waiting up to {format_duration(PATIENCE)} for the controller's receipt")
        while clock() - began < PATIENCE:
            await asyncio.sleep(PAUSE)
            try:
                status = await read_status(self.client, self.namespace)
            except (Unreachable, ServerError, TooManyRequests, NotInstalledError):
                continue  # The connection may be back in time.
            if status.test_message.id == self.ident:
                self.result, self.took, self.proved = RECEIVED, clock() - began, len(PROVED)
                took = format_duration(self.took)
                self.text = f"received by the controller {status.leader.identity}, as its status showed after {took}"
                return
        self.text = f"no controller reported the message within {format_duration(PATIENCE)}"

    async def _remove(self) -> None:
        try:
            fate = await self.sender.remove()
        except (CloudError, LostAnswerError) as error:
            self.left = f"{error}; the test message may still be in the queue, which drops it after its retention period; it does no harm"
            return
        if fate == ABSENT:
            self.left = (
                "the queue is empty now: another program takes its messages, such as AWS's node termination handler, Karpenter, or the "
                "controller of another cluster; or gpuscaler there is of a version that knows no test messages"
            )
        elif fate == LEFT:
            self.left = "it may still be in the queue, which has messages and drops each after its retention period; it does no harm"
        else:
            self.left = (
                "it was still in the queue, and was removed: the controller does not read this queue. Compare aws.queue_url in its run "
                "file, and see the problems in gpuscaler status; a dry run reads no queue"
            )
