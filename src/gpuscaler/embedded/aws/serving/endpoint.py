"""Answers requests: reads the operation, checks whether it is allowed, carries it out."""

from collections.abc import Callable, Mapping
from dataclasses import replace
from email.utils import format_datetime
from random import Random
from typing import Any, Final

from gpuscaler.embedded.aws import others
from gpuscaler.embedded.aws.account import Account
from gpuscaler.embedded.aws.autoscaling import capacity, groups, hooks, policies, refreshes
from gpuscaler.embedded.aws.ec2 import ec2, fleets, instances
from gpuscaler.embedded.aws.eks import nodegroups, pod_identities
from gpuscaler.embedded.aws.launch import templates, volumes
from gpuscaler.embedded.aws.messages import queues
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.serving import control
from gpuscaler.embedded.aws.serving.faults import Fault, Faults
from gpuscaler.embedded.aws.wire.errors import AwsError, BrokenError
from gpuscaler.embedded.aws.wire.models import SERVICES, Models
from gpuscaler.embedded.aws.wire.reading import Call, Request, read, scope_of
from gpuscaler.embedded.aws.wire.spellings import respell
from gpuscaler.embedded.aws.wire.writing import Answer, to_datetime, write, write_error

Handler = Callable[[Region, dict[str, Any]], dict[str, Any]]

HANDLERS: Final[Mapping[str, Mapping[str, Handler]]] = {
    "autoscaling": {
        **groups.OPERATIONS,
        **hooks.OPERATIONS,
        **capacity.OPERATIONS,
        **refreshes.OPERATIONS,
        **policies.OPERATIONS,
        **others.AUTOSCALING,
    },
    "ec2": {**ec2.OPERATIONS, **templates.OPERATIONS, **instances.OPERATIONS, **volumes.OPERATIONS, **fleets.OPERATIONS},
    "eks": {**nodegroups.OPERATIONS, **pod_identities.OPERATIONS},
    "pricing": others.PRICING,
    "sqs": queues.OPERATIONS,
    "sts": others.STS,
}
#: Calls that launch synchronously.
_SYNCHRONOUS: Final = frozenset({"LaunchInstances", "CreateFleet"})


class Endpoint:
    """Answers requests to ``account``. It never waits: an answer says how long it takes. ``models`` can be shared between endpoints.

    ``calls`` are counted by service, operation and code ("" for success).
    """

    def __init__(self, account: Account, models: Models | None = None, *, seed: int = 0) -> None:
        self.account = account
        self.faults = Faults(seed)
        self.calls: dict[tuple[str, str, str], int] = {}
        self._models = models or Models()
        self._requests = 0
        self._dice = Random(seed)

    def handle(self, request: Request) -> Answer:
        """The answer to one request. Raises :class:`~gpuscaler.embedded.aws.wire.errors.BrokenError` if the connection breaks."""
        if request.path.startswith(control.PATH):
            return control.handle(self.account, self.faults, request)
        self._requests += 1
        ident = f"00000000-0000-4000-8000-{self._requests:012x}"
        service, call, fault = None, None, None
        try:
            name = scope_of(request)[2]
            service = self._models.service(name) if name in SERVICES else None
            call = read(self._models, request)
            self.account.advance()
            fault = self.faults.pick(call)
            answer = self._answer(call, fault, ident)
            code = ""
        except AwsError as error:
            answer, code = write_error(service, error, ident), error.code
        if call is not None:
            self._count(call, code)
        # AWS's own clock, by which callers recognise state that is older than their request.
        date = format_datetime(to_datetime(self.account.now()), usegmt=True)
        return replace(answer, headers={**answer.headers, "date": date}, after=answer.after + (fault.delay if fault is not None else 0.0))

    def _answer(self, call: Call, fault: Fault | None, ident: str) -> Answer:
        handler = HANDLERS[call.service].get(call.operation)
        if handler is None:
            text = f"{call.service} {call.operation} is an operation that this endpoint does not support"
            raise AwsError("NotImplemented", text, status=501)
        if fault is not None:
            _refuse(call, fault, self.account)
        region = self._region(call)
        if call.params.get("DryRun"):
            raise AwsError("DryRunOperation", "Request would have succeeded, but DryRun flag is set.", status=412)
        reply = handler(region, call.params)
        # Immediate effects must have happened before the answer is read.
        self.account.advance()
        if fault is not None and fault.sever:
            raise BrokenError
        answer = write(call.model, respell(reply, region.conditions.spelling, self._dice), ident)
        if call.operation in _SYNCHRONOUS:
            return replace(answer, after=region.conditions.answer)
        if call.operation == "ReceiveMessage" and not reply:
            return replace(answer, wait=queues.wait_seconds(region, call.params))
        return answer

    def _region(self, call: Call) -> Region:
        if call.service == "pricing":
            return self.account.pricing(call.region)
        return self.account.region(queues.region_in(call.params.get("QueueUrl", "")) or call.region)

    def _count(self, call: Call, code: str) -> None:
        key = (call.service, call.operation, code)
        self.calls[key] = self.calls.get(key, 0) + 1


def _refuse(call: Call, fault: Fault, account: Account) -> None:
    if fault.sever == "before":
        raise BrokenError
    if not fault.code:
        return
    code, message = fault.code, fault.message
    if call.service == "ec2":
        code = {"Throttling": "RequestLimitExceeded", "AccessDenied": "UnauthorizedOperation"}.get(code, code)
        message = {"RequestLimitExceeded": "Request limit exceeded."}.get(code, message)
    if call.service in {"eks", "pricing", "sqs"}:
        code = {"Throttling": "ThrottlingException", "AccessDenied": "AccessDeniedException"}.get(code, code)
    if not message:
        user = f"arn:aws:iam::{account.id}:user/gpuscaler"
        action = f"{call.service}:{call.operation}"
        message = f"User: {user} is not authorized to perform: {action} because no identity-based policy allows the {action} action"
        if fault.status != 403:
            message = code
    raise AwsError(code, message, status=503 if code == "RequestLimitExceeded" else fault.status, retry_after=fault.retry_after)
