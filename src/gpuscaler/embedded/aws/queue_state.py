"""Queues and the messages in them, as data."""

from dataclasses import dataclass, field


@dataclass(slots=True)
class Message:
    """A message; it can be received from ``visible_at`` on, and ``receipt`` is its latest receipt."""

    id: str
    body: str
    sent_at: float
    visible_at: float
    received: int = 0
    receipt: str = ""


@dataclass(slots=True)
class Queue:
    """A queue; with ``receives_notices`` a rule sends it the notices of EC2 and Auto Scaling.

    ``settings`` are attributes that are stored and shown only: its policy, its encryption.
    """

    name: str
    url: str
    visibility: float = 30.0
    wait: float = 0.0
    retention: float = 345_600.0
    receives_notices: bool = False
    messages: dict[str, Message] = field(default_factory=dict)
    settings: dict[str, str] = field(default_factory=dict)

    def send(self, body: str, *, ident: str, now: float, delay: float = 0.0) -> Message:
        """Add a message."""
        message = Message(ident, body, now, now + delay)
        self.messages[ident] = message
        return message

    def ready(self, now: float) -> list[Message]:
        """The messages that can be received; expired ones are dropped."""
        for ident in [ident for ident, message in self.messages.items() if message.sent_at + self.retention <= now]:
            del self.messages[ident]
        return [message for message in self.messages.values() if message.visible_at <= now]
