"""What people submit, each in a namespace and a pool of its own, from nothing to machines and back to none."""

from collections.abc import Awaitable, Callable

from tests.e2e.objects import Json, deployment, pod_spec
from tests.e2e.stage import Stage

Scenario = Callable[[Stage, str], Awaitable[None]]


async def a_deployment(stage: Stage, name: str) -> None:
    await stage.create(deployment("serve", 3, pod_spec(name)), name)
    assert len(await stage.bound(name, 3)) == 3
    await stage.scale("Deployment", "serve", name, 0)
    await stage.empty(name)


#: By the sentence that a scenario proves: itself, and its pool.
SCENARIOS: dict[str, tuple[Scenario, Json]] = {
    "a Deployment gets machines, and none is left when it is scaled to zero": (a_deployment, {"types": ["g4dn.xlarge", "g4dn.12xlarge"]}),
}
