"""A machine that only seems empty, because a pod on it cannot be parsed, is not removed (I4)."""

from tests.control.world import world
from tests.objects import pod

from gpuscaler.kube.resources import PODS

SOON = """
region: us-east-1
pools:
  - name: gpu
    types: [g4dn.xlarge]
    markets: [on-demand]
    zones: [us-east-1a]
    idle_after: 60s
"""


async def test_a_machine_with_an_unparsable_pod_stays_until_the_pod_is_gone() -> None:
    async with world(SOON) as here:
        here.start()
        await here.sleep(2.0)
        await here.user.create(PODS, pod("p", annotations={"gpuscaler.io/run-for": "1m"}), namespace="default")
        await here.sleep(60.0)
        (node,) = await here.nodes()
        odd = pod("odd", 0)
        odd["spec"]["nodeName"] = node["metadata"]["name"]
        odd["spec"]["containers"][0]["resources"]["requests"]["memory"] = "a lot"
        await here.user.create(PODS, odd, namespace="default")
        await here.sleep(600.0)

        assert (await here.bound()).keys() >= {"odd"}
        assert here.notes.last is not None
        assert [entry.object for entry in here.notes.last.set_aside] == ["Pod default/odd"]
        assert [(blocked.node, blocked.blocker) for blocked in here.notes.last.blocked_nodes] == [
            (node["metadata"]["name"], "unreadable-pod")
        ]
        assert len(here.cluster.core.list()) == 1
        await here.user.delete(PODS, "odd", namespace="default", grace=0)
        await here.sleep(200.0)
        assert here.cluster.core.list() == ()
