"""Requests answered: what is asked, whether it may be, what comes of it."""

from collections.abc import Callable, Mapping
from typing import Any, Final

from gpuscaler.embedded.aws import capacity, ec2, groups, hooks, queues, templates
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.errors import AwsError
from gpuscaler.embedded.aws.models import SERVICES, Models
from gpuscaler.embedded.aws.reading import Call, Request, read, scope_of
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.writing import Answer, write, write_error

Handler = Callable[[Region, dict[str, Any]], dict[str, Any]]

HANDLERS: Final[Mapping[str, Mapping[str, Handler]]] = {
    "autoscaling": {**groups.OPERATIONS, **hooks.OPERATIONS, **capacity.OPERATIONS},
    "ec2": {**ec2.OPERATIONS, **templates.OPERATIONS},
    "sqs": queues.OPERATIONS,
}


class Endpoint:
    """Answers requests to ``account``. Nothing here waits: an answer says how long it takes. ``models`` may be shared between endpoints."""

    def __init__(self, account: Account, models: Models | None = None) -> None:
        self.account = account
        self._models = models or Models()
        self._requests = 0

    def handle(self, request: Request) -> Answer:
        """The answer to one request."""
        self._requests += 1
        ident = f"00000000-0000-4000-8000-{self._requests:012x}"
        service = None
        try:
            name = scope_of(request)[2]
            service = self._models.service(name) if name in SERVICES else None
            call = read(self._models, request)
            self.account.advance()
            return write(call.model, self._answer(call), ident)
        except AwsError as error:
            return write_error(service, error, ident)

    def _answer(self, call: Call) -> Mapping[str, Any]:
        handler = HANDLERS.get(call.service, {}).get(call.operation)
        if handler is None:
            text = f"{call.service} {call.operation} is an operation of AWS that this endpoint does not have"
            raise AwsError("NotImplemented", text, status=501)
        reply = handler(self.account.region(call.region), call.params)
        # What happens at once has happened when the answer is read.
        self.account.advance()
        return reply
