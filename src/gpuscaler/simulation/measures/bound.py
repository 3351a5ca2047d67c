"""A lower bound, in hindsight, on the cost of serving a set of pods: a linear program over resources.

Let ``x[o]`` be the machine-hours bought of offering ``o`` and ``h[c, o]`` the hours that pods of class ``c`` run on it. Under any policy,
every class gets its hours on offerings that admit it, and on no offering do its pods take more of a resource than its machine-hours
provide. The cheapest such ``x`` therefore never costs more than the real run. The bound is loose: machines come whole, boot, and idle
between jobs, and jobs cannot wait for ever; all of that is ignored.
"""

from collections.abc import Sequence

import highspy
import numpy as np

from gpuscaler.model.pods import PodSpec
from gpuscaler.model.pools import Offering

#: The bound is solved to this relative accuracy and lowered by it.
ACCURACY = 1e-7

KIND = "resource-lp over the whole run, in hindsight"


def lower_bound(work: Sequence[tuple[PodSpec, float]], offerings: Sequence[Offering]) -> float:
    """The minimum cost of ``work`` in US dollars on ``offerings``; ``work`` is pod specifications with the hours they ran.

    A specification that no offering admits is left out.
    """
    servable = [(spec, hours) for spec, hours in work if hours > 0 and any(serves(offering, spec) for offering in offerings)]
    if not servable:
        return 0.0
    specs = [spec for spec, _ in servable]
    kinds = _kinds(offerings, specs)
    solver = highspy.Highs()  # type: ignore[no-untyped-call]  # highspy leaves it untyped
    solver.silent()
    solver.setOptionValue("threads", 1)
    hours_done = np.array([hours for _, hours in servable])
    empty = (0, np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))
    solver.addRows(len(servable), hours_done, hours_done, *empty)
    for kind, served in kinds:
        _add_kind(solver, kind, [(number, specs[number]) for number in served])
    solver.run()
    if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
        # Every class has an offering and machine-hours are unlimited, so only numerical trouble leads here; 0 is always a valid bound.
        return 0.0
    return max(0.0, float(solver.getInfo().objective_function_value) * (1.0 - ACCURACY))


def _kinds(offerings: Sequence[Offering], specs: Sequence[PodSpec]) -> list[tuple[Offering, tuple[int, ...]]]:
    """Offerings with the specifications they serve; among those that differ only in price, the cheapest."""
    best: dict[tuple[object, ...], tuple[Offering, tuple[int, ...]]] = {}
    for offering in offerings:
        served = tuple(number for number, spec in enumerate(specs) if serves(offering, spec))
        key = (served, tuple(sorted(offering.allocatable.items())))
        if served and (key not in best or offering.price < best[key][0].price):
            best[key] = (offering, served)
    return list(best.values())


def _add_kind(solver: highspy.Highs, kind: Offering, served: Sequence[tuple[int, PodSpec]]) -> None:
    """Add a kind: a column of machine-hours, a column of pod-hours per class, and a row per resource that limits the pods."""
    resources = sorted({name for _, spec in served for name in spec.requests} | {"pods"})
    row_of = {name: solver.getNumRow() + number for number, name in enumerate(resources)}
    size = len(resources)
    solver.addRows(size, np.full(size, -highspy.kHighsInf), np.zeros(size), 0, np.zeros(0, np.int32), np.zeros(0, np.int32), np.zeros(0))
    solver.addCol(kind.price, 0.0, highspy.kHighsInf, size, np.array(list(row_of.values()), np.int32), np.full(size, -1.0))
    for number, spec in served:
        shares = {row_of[name]: amount / kind.allocatable[name] for name, amount in (*spec.requests.items(), ("pods", 1)) if amount}
        rows = np.array([number, *shares], np.int32)
        solver.addCol(0.0, 0.0, highspy.kHighsInf, len(rows), rows, np.array([1.0, *shares.values()]))


def serves(offering: Offering, spec: PodSpec) -> bool:
    """Whether one pod of ``spec`` fits a new machine of ``offering``."""
    fits = all(offering.allocatable.get(name, 0) >= amount for name, amount in spec.requests.items())
    return fits and offering.allocatable.get("pods", 0) >= 1 and offering.admits(spec)
