"""A group that follows the rules of Auto Scaling, other parties that change it, and a record of forbidden outcomes."""

import random

from gpuscaler.clouds.aws.api.groups import Group, Machine
from gpuscaler.clouds.aws.buying.activities import ActivityLog, CapacityChange
from gpuscaler.clouds.aws.buying.withdrawing import CapacityOutcome, Protect, Read, ReadActivities, Step, Steps, Write


class GroupModel:
    """``kept`` is what others want of the group plus our machines that came; ``missing`` is what we raised and has not come."""

    def __init__(self, luck: random.Random, *, protected: bool) -> None:
        self.luck = luck
        self.min, self.max = 0, 60
        self.protected = protected
        self.machines: dict[str, Machine] = {}
        self.numbers = 0
        self.desired = luck.randint(0, 8)
        self.attempts: list[str] = []
        for _ in range(luck.randint(0, self.desired)):
            self.attempt()
            self.launch("InService")
        self.kept = self.desired
        self.missing = 0
        self.now = 0
        self.changes: list[CapacityChange] = []
        self.unnamed: list[str] = []
        self.served: dict[str, int] = {}
        self.asking = False
        self.read = 0

    # Actions of the cloud

    def attempt(self) -> None:
        """Begin a launch, which its activity shows at once; the machine comes later."""
        self.numbers += 1
        self.attempts.append(f"i-{self.numbers:08x}")

    def launch(self, state: str = "Pending") -> None:
        name = self.attempts.pop(0)
        self.machines[name] = Machine(name, "p5.48xlarge", "us-east-1a", state, protected=self.protected and state == "InService")

    def serve(self) -> None:
        """Bring starting machines into service, where protection begins."""
        for machine in self.live():
            if machine.state == "Pending":
                self.served[machine.id] = self.now
                self.put(machine.id, state="InService", protected=self.protected)

    def set_desired(self, desired: int, *, by_us: bool) -> None:
        assert self.min <= desired <= self.max
        if desired != self.desired:
            self.changes.append(CapacityChange(float(self.now), self.desired, desired))
        if not by_us:
            self.kept += desired - self.desired
        self.desired = desired

    def live(self) -> list[Machine]:
        return [machine for machine in self.machines.values() if machine.state in ("Pending", "InService")]

    def group(self) -> Group:
        return Group(
            name="workers",
            region="us-east-1",
            arn="",
            tags={},
            min=self.min,
            max=self.max,
            desired=self.desired,
            zones=("us-east-1a",),
            machines=tuple(self.machines.values()),
            protected=self.protected,
        )

    def put(self, name: str, **changed: object) -> None:
        old = self.machines[name]
        fields = {field: getattr(old, field) for field in old.__struct_fields__}
        self.machines[name] = Machine(**{**fields, **changed})

    def step(self, writing: int | None = None) -> None:
        """Let one thing happen, or nothing. Others never write the number we are ``writing``: that could not be told apart from ours."""
        event = self.luck.choice(
            ("raise", "lower", "begin", "begin", "arrive", "arrive", "serve", "serve", "die", "end", "gone", "group", "group", "wait")
        )
        live = self.live()
        if event == "raise":
            more = min(self.desired + self.luck.randint(1, 4), self.max)
            self.set_desired(self.desired if more == writing else more, by_us=False)
        elif event == "lower" and self.desired > len(live) + len(self.attempts):
            # If others lowered the group below its machines, what it ends is their responsibility.
            less = self.luck.randint(len(live) + len(self.attempts), self.desired - 1)
            self.set_desired(self.desired if less == writing else less, by_us=False)
        elif event == "begin" and writing is None and len(live) + len(self.attempts) < self.desired:
            # No launch begins in the moment between the last read of the group and the write that follows it.
            self.attempt()
        elif event == "arrive" and self.attempts:
            self.launch()
            # Machines that come while an order is raised or withdrawn are counted for others.
            if not self.asking and self.missing and self.luck.random() < 0.7:
                self.missing -= 1
                self.kept += 1
        elif event == "serve":
            self.serve()
        elif event == "die" and live:
            self.put(self.luck.choice(live).id, state="Terminating")
        elif event == "end" and live and self.desired > self.min:
            # We end a machine by its id.
            self.put(self.luck.choice(live).id, state="Terminating:Wait")
            self.set_desired(self.desired - 1, by_us=True)
            self.kept -= 1
        elif event == "gone":
            self.machines = {name: machine for name, machine in self.machines.items() if not machine.state.startswith("Terminating")}
        elif event == "group":
            self.scale_in()
        # Others do not write twice in a second; we may write in the same second as they do.
        self.now += 1

    def scale_in(self) -> None:
        """End unprotected machines while more exist than are desired, as the group does."""
        live = self.live()
        free = [machine for machine in live if not machine.protected]
        for machine in free[: max(0, len(live) - self.desired)]:
            self.put(machine.id, state="Terminating")
            self.unnamed.append(machine.id)

    # Our requests

    def drive(self, steps: Steps, *, busy: float) -> CapacityOutcome:
        """Answer ``steps``, while other things happen between any two of them with the probability ``busy``."""
        answer: object = None
        since = None
        self.asking = True
        while True:
            try:
                asked: Step = steps.send(answer)
            except StopIteration as stop:
                self.asking = False
                outcome: CapacityOutcome = stop.value
                return outcome
            while self.luck.random() < busy:
                self.step(asked.desired if isinstance(asked, Write) else None)
            since = self.now if since is None else since
            answer = self.answer(asked, since)

    def answer(self, asked: Step, since: int) -> object:
        match asked:
            case Read():
                self.read = self.desired
                return self.group()
            case Write(desired=desired):
                self.missing -= min(self.missing, max(0, self.read - desired))
                self.set_desired(desired, by_us=True)
            case Protect(instances=names):
                for name in names:
                    if name in self.machines and self.machines[name].state == "InService":
                        self.put(name, protected=True)
            case ReadActivities():
                # A launch is reported until its machine has been in service for a while.
                starting = [
                    machine.id
                    for machine in self.machines.values()
                    if machine.state == "Pending" or self.served.get(machine.id, -1) >= since
                ]
                return ActivityLog(tuple(change for change in self.changes if change.at >= since), (*self.attempts, *starting))
        return None
