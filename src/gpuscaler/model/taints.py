"""Taints and tolerations. Source: ``k8s.io/component-helpers/scheduling/corev1/helpers.go`` and ``core/v1/toleration.go``."""

from collections.abc import Iterable

from msgspec import Struct

#: The effect of gpuscaler's closing taint, instead of NoSchedule, on a node that gpuscaler has cordoned: only pods of DaemonSets are
#: admitted for now.
WINDOW_EFFECT = "PreferNoSchedule"
#: Effects that keep a pod from being scheduled; PreferNoSchedule only lowers a score.
HARD_EFFECTS = ("NoSchedule", "NoExecute")


class Taint(Struct, frozen=True, gc=False):
    key: str
    value: str = ""
    effect: str = "NoSchedule"

    def __str__(self) -> str:
        return f"{self.key}={self.value}:{self.effect}" if self.value else f"{self.key}:{self.effect}"


class Toleration(Struct, frozen=True, gc=False):
    """A toleration: empty ``effect`` means every effect, empty ``key`` with Exists means every taint."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        match self.operator:
            case "Exists":
                return True
            case "Equal" | "":
                return self.value == taint.value
            case _:
                # Gt and Lt are behind the feature gate TaintTolerationComparisonOperators; without it such a toleration matches nothing.
                return False


def untolerated(taints: Iterable[Taint], tolerations: tuple[Toleration, ...]) -> Taint | None:
    """The first taint with a hard effect that no toleration covers, or None."""
    for taint in taints:
        if taint.effect in HARD_EFFECTS and not any(t.tolerates(taint) for t in tolerations):
            return taint
    return None
