"""Compares both sides on the same cases, node by node, and finds the smallest case that still shows a difference."""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from . import ours
from .asking import Json, Oracle, OracleError
from .cases import draw_case
from .shrinking import shrink


@dataclass(frozen=True)
class Difference:
    """One pod and node on which the two sides disagree, with the plug-ins that refuse on either side."""

    pod: str
    node: str
    theirs: tuple[str, ...]
    ours: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.pod} on {self.node}: kube-scheduler {shown(self.theirs)}, ours {shown(self.ours)}"

    def like(self, other: "Difference") -> bool:
        """Whether both are the same finding, regardless of pod and node."""
        return (self.theirs, self.ours) == (other.theirs, other.ours)


def shown(plugins: tuple[str, ...]) -> str:
    return f"refuses ({', '.join(plugins)})" if plugins else "accepts"


@dataclass
class Tally:
    """The counts of a run. ``differences`` holds (number of the case, difference)."""

    cases: int = 0
    pairs: int = 0
    accepted: int = 0
    sole: Counter[str] = field(default_factory=Counter)
    differences: list[tuple[int, Difference]] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.cases += other.cases
        self.pairs += other.pairs
        self.accepted += other.accepted
        self.sole += other.sole
        self.differences += other.differences


def compare(oracle: Oracle, seed: int, numbers: Iterable[int]) -> Tally:
    """Draw the cases, compare both sides, and count the results."""
    tally = Tally()
    for number in numbers:
        case = draw_case(seed, number)
        theirs = ask(oracle, case)
        count(tally, case, theirs)
        tally.differences += [(number, difference) for difference in differences(case, theirs, otherwise=variant(number))]
    return tally


def variant(number: int) -> bool:
    """Whether our side of a case is built the other way (see :func:`tests.conformance.ours.judge`)."""
    return number % 3 == 1


def ask(oracle: Oracle, case: Json) -> list[ours.Refusals]:
    return verdicts(case, oracle.ask(case))


def verdicts(case: Json, answer: Json) -> list[ours.Refusals]:
    return [verdict["rejected"] for verdict in answer.get("steps" if "replay" in case else "pods") or ()]


def count(tally: Tally, case: Json, theirs: list[ours.Refusals]) -> None:
    tally.cases += 1
    nodes = [node["metadata"]["name"] for node in case["nodes"]]
    for refused in theirs:
        tally.pairs += len(nodes)
        tally.accepted += len(nodes) - len(refused)
        tally.sole.update(plugins[0] for plugins in refused.values() if len(plugins) == 1)


def differences(case: Json, theirs: list[ours.Refusals], *, otherwise: bool = False) -> Iterator[Difference]:
    """Every pod and node that only one side accepts, or that both refuse for different reasons."""
    try:
        mine = ours.replay(case, theirs, otherwise=otherwise) if "replay" in case else ours.judge(case, otherwise=otherwise)
    except Exception as error:  # noqa: BLE001  # an exception on our side is a finding like any other
        yield Difference("any pod", "any node", (), (f"{type(error).__name__}: {error}",))
        return
    pods = [case["pending"][step["pod"]] for step in case["replay"]] if "replay" in case else case.get("pending") or ()
    for pod, their, our in zip(pods, theirs, mine, strict=True):
        for node in (node["metadata"]["name"] for node in case["nodes"]):
            difference = Difference(pod["metadata"]["name"], node, tuple(sorted(their.get(node, ()))), tuple(sorted(our.get(node, ()))))
            if difference.theirs != difference.ours:
                yield difference


#: Fields that the API server requires or fills in, and that both sides would default differently.
REQUIRED = frozenset(
    "apiVersion kind metadata name namespace uid allocatable key operator values topologyKey maxSkew whenUnsatisfiable".split()
)


def minimal(oracle: Oracle, case: Json, difference: Difference, *, otherwise: bool = False) -> Json:
    """The smallest part of ``case`` that shows the same difference: no single element of it can be left out."""

    def shows(part: Json) -> bool:
        try:
            return any(found.like(difference) for found in differences(part, ask(oracle, part), otherwise=otherwise))
        except (OracleError, KeyError, IndexError, TypeError):
            return False  # the rest is no longer a valid case

    return shrink(case, shows, REQUIRED)
