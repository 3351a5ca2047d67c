"""One side of the contract: an account in which the script runs, and everything that must be deleted at the end."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from botocore.exceptions import BotoCoreError, ClientError

#: Everything that the script creates has this tag, with the name of the run.
TAG = "gpuscaler-contract"


@dataclass(slots=True, kw_only=True)
class Side:
    """``client`` makes boto3's clients, ``wait`` lets seconds pass. Machines are of ``kind``, started from ``image`` in ``subnet``.

    ``run`` is the name of the run and of everything that it creates. ``undo`` deletes that again, the newest first.
    """

    account: str
    region: str
    client: Callable[[str], Any]
    wait: Callable[[float], None]
    run: str
    kind: str
    image: str
    subnet: str
    undo: dict[str, Callable[[], Any]] = field(default_factory=dict)

    def later(self, what: str, undo: Callable[[], Any]) -> None:
        """Register how ``what`` is deleted, before it is created."""
        self.undo.setdefault(what, undo)

    def until(self, done: Callable[[], bool], seconds: float, *, every: float = 5.0) -> bool:
        """Wait until ``done``, for at most that many seconds; returns whether it is."""
        waited = 0.0
        while not done():
            if waited >= seconds:
                return False
            self.wait(every)
            waited += every
        return True

    def clean(self) -> list[str]:
        """Delete everything that was created; returns errors of failed deletions."""
        left = []
        while self.undo:
            what, undo = self.undo.popitem()
            left += self._tried(what, undo)
        if idents := self.machines():
            # Deleting a group ends its machines; that is verified.
            left += self._tried("machines", lambda: self.client("ec2").terminate_instances(InstanceIds=idents))
        return left

    def _tried(self, what: str, undo: Callable[[], Any]) -> list[str]:
        try:
            undo()
        except ClientError as error:
            return [] if is_gone(error) else [f"{what}: {error}"]
        except BotoCoreError as error:
            return [f"{what}: {error}"]
        return []

    def machines(self) -> list[str]:
        """Ids of the machines of this run that are not ending."""
        alive = {"Name": "instance-state-name", "Values": ["pending", "running", "stopping", "stopped"]}
        reservations = self.client("ec2").describe_instances(Filters=[*self._filters, alive])["Reservations"]
        return [instance["InstanceId"] for some in reservations for instance in some["Instances"]]

    def left(self) -> list[str]:
        """Machines and groups of this run that are not ending."""
        groups = self.client("autoscaling").describe_auto_scaling_groups(Filters=self._filters)["AutoScalingGroups"]
        remaining = [f"group {group['AutoScalingGroupName']}" for group in groups if not group.get("Status")]
        return [*remaining, *(f"machine {ident}" for ident in self.machines())]

    @property
    def _filters(self) -> list[dict[str, Any]]:
        return [{"Name": f"tag:{TAG}", "Values": [self.run]}]


def is_gone(error: ClientError) -> bool:
    """Whether a resource to be deleted is already gone."""
    details = error.response["Error"]
    return "NotFound" in details["Code"] or "NonExistent" in details["Code"] or "not found" in details["Message"]
