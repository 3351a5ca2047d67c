"""What the controller does when one right is missing: it names it, goes on with the rest, and is well once it has it."""

import asyncio
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from random import Random

import msgspec
import pytest
from tests.e2e.objects import deployment, pod_spec
from tests.e2e.stage import ACCOUNT, CLUSTER_ROLES, KINDS, NAMESPACE, Controller, Json, Stage, roles, stage, until

from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.picture import Picture
from gpuscaler.kube.rate import RateLimit
from gpuscaler.kube.resources import NAMESPACES, WATCHED, Resource

pytestmark = pytest.mark.e2e

Outcomes = Mapping[str, BaseException | None]

REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
RBAC = "rbac.authorization.k8s.io"
#: So many pictures are taken at once.
ABREAST = 6
READS = [(verb, resource) for resource in WATCHED for verb in ("list", "watch")]
#: Rights to write, and whether machines are bought without them. Who cannot renew its lease leads until that has run out.
WRITES = [
    ("patch", "nodes", True),
    ("patch", "pods/status", True),
    ("update", "configmaps", False),
    ("update", "leases", True),
    ("create", "events", True),
]
#: A pool that a machine is drained in, another one, and the right that draining takes.
DRAINED, BESIDE = "drained", "beside"
EVICTING = "create pods/eviction"


def name_of(verb: str, resource: str) -> str:
    return f"{verb} {resource}"


def without(rules: Sequence[Json], verb: str, resource: str, group: str | None = None) -> list[Json]:
    """The rules of a role without one right; ``group`` None means any."""
    left = []
    for rule in rules:
        if resource in rule["resources"] and verb in rule["verbs"] and (group is None or group in rule["apiGroups"]):
            others = [one for one in rule["resources"] if one != resource]
            verbs = [one for one in rule["verbs"] if one != verb]
            left += [{**rule, "resources": others}] if others else []
            left += [{**rule, "resources": [resource], "verbs": verbs}] if verbs else []
        else:
            left.append(rule)
    return left


def said(verb: str, resource: str) -> str:
    """How an API server says that a right is missing."""
    return f'cannot {verb} resource "{resource}"'


@pytest.fixture(scope="module")
def outcomes() -> Outcomes:
    return asyncio.run(_play())


async def _play() -> Outcomes:
    found: dict[str, BaseException | None] = {}

    async def keep(name: str, test: asyncio.Task[None]) -> None:
        await asyncio.wait((test,))
        found[name] = test.exception()

    async with stage("rights") as made, made.kubelets():
        await made.install()
        pools = [{"name": f"r{number}", "types": ["g4dn.xlarge"]} for number in range(len(WRITES))]
        pools += [{"name": DRAINED, "types": ["g4dn.12xlarge"]}, {"name": BESIDE, "types": ["g4dn.xlarge"]}]
        run_file = made.run_file("run", pools, http={"enabled": False}, pace={"resync": "2s", "consolidate": "2s"})
        controller = made.start(run_file, await made.kubeconfig())
        slots = asyncio.Semaphore(ABREAST)

        async def read(number: int, verb: str, resource: Resource) -> None:
            async with slots:
                await keep(name_of(verb, resource.label), asyncio.create_task(_reads(made, f"reader-{number}", verb, resource)))

        await asyncio.gather(*(read(number, verb, resource) for number, (verb, resource) in enumerate(READS)))
        for number, (verb, name, buys) in enumerate(WRITES):
            test = _writes(made, controller, pool=f"r{number}", verb=verb, resource=name, buys=buys)
            await keep(name_of(verb, name), asyncio.create_task(test))
        await keep(EVICTING, asyncio.create_task(_evicts(made, controller)))
        controller.check()
    return found


async def _reads(made: Stage, user: str, verb: str, resource: Resource) -> None:
    """A picture of this resource, and of another one, by somebody who may read everything but this."""
    (role,) = [one for one in roles() if one["kind"] == "ClusterRole" and one["metadata"]["name"].endswith("controller")]
    rules = without(role["rules"], verb, resource.plural, resource.group)
    meta = {"metadata": {"name": user}}
    await made.apply(CLUSTER_ROLES, {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRole", **meta, "rules": rules})
    subjects = [{"kind": "User", "name": user, "apiGroup": "rbac.authorization.k8s.io"}]
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user}
    binding = {
        "apiVersion": "rbac.authorization.k8s.io/v1",
        "kind": "ClusterRoleBinding",
        **meta,
        "subjects": subjects,
        "roleRef": reference,
    }
    await made.apply(KINDS["ClusterRoleBinding"], binding)
    access = from_kubeconfig([made.plane.write_kubeconfig(user, pair=made.plane.certificate(user))], environ={})
    async with HttpTransport(access) as transport:
        client = Client(transport, limit=RateLimit(qps=1e6, burst=1_000_000))
        other = next(one for one in (NAMESPACES, *WATCHED) if one.label != resource.label)
        picture = Picture(client, clock=asyncio.get_running_loop().time, random=Random(1), resources=(resource, other))
        life = asyncio.create_task(picture.run())
        try:
            mine, others = picture.reflectors

            async def told() -> bool:
                # A server that streams lists is never asked for one.
                named = any(said(verb, resource.plural) in one for one in picture.troubles)
                return others.synced and (named or (verb == "list" and mine.synced))

            await until("the missing right is named, or not needed", told)
            assert not others.trouble
        finally:
            life.cancel()
            await asyncio.gather(life, return_exceptions=True)


@asynccontextmanager
async def missing(made: Stage, verb: str, resource: str) -> AsyncIterator[None]:
    """The controller's roles without one right for a while."""
    whole = [one for one in roles() if "rules" in one]
    for role in whole:
        await made.apply(KINDS[role["kind"]], {**role, "rules": without(role["rules"], verb, resource)})
    try:
        yield
    finally:
        for role in whole:
            await made.apply(KINDS[role["kind"]], role)


async def _refused(made: Stage, verb: str, resource: str) -> bool:
    """Whether the API server refuses the controller a right, of whichever API group it is."""
    plural, _, subresource = resource.partition("/")
    groups = {group for role in roles() for rule in role.get("rules", ()) if resource in rule["resources"] for group in rule["apiGroups"]}
    for group in groups:
        asked = {"verb": verb, "group": group, "resource": plural, "subresource": subresource, "namespace": NAMESPACE}
        spec = {"user": f"system:serviceaccount:{NAMESPACE}:{ACCOUNT}", "resourceAttributes": asked}
        found = await made.admin.create(REVIEWS, {"apiVersion": "authorization.k8s.io/v1", "kind": REVIEWS.kind, "spec": spec})
        if msgspec.json.decode(found)["status"]["allowed"]:
            return False
    return True


async def _writes(made: Stage, controller: Controller, *, pool: str, verb: str, resource: str, buys: bool) -> None:
    await made.namespace(pool)

    async def ordered() -> bool:
        return bool(controller.told("ordered", pool=pool))

    async with missing(made, verb, resource):
        # The API server's own authorizer hears of it a moment later.
        await until(f"nobody may {verb} {resource}", lambda: _refused(made, verb, resource))
        await made.create(deployment("serve", 1, pod_spec(pool)), pool)
        await _named(made, controller, verb, resource)
        if buys:
            await until("a machine is ordered", ordered)
        else:
            assert not await ordered()
    await made.bound(pool, 1)
    assert len(controller.told("ordered", pool=pool)) == 1
    await made.scale("Deployment", "serve", pool, 0)
    await made.empty(pool)


async def _named(made: Stage, controller: Controller, verb: str, resource: str) -> None:
    """Until it is told that a right is missing."""

    async def told() -> bool:
        status = await made.state("gpuscaler-status") or {}
        # Quotes are escaped in both.
        return said(verb, resource).replace('"', "") in f"{controller.log.read_text()}{status}".replace("\\", "").replace('"', "")

    await until(f"{said(verb, resource)} is told", told)


async def _evicts(made: Stage, controller: Controller) -> None:
    """Two machines, of which one would do once the pod that is there for three of four GPUs is gone."""
    for pool in (DRAINED, BESIDE):
        await made.namespace(pool)
    await made.create(deployment("goes", 1, pod_spec(DRAINED, gpus=3)), DRAINED)
    await made.create(deployment("small", 1, pod_spec(DRAINED)), DRAINED)
    await made.bound(DRAINED, 2)
    await made.create(deployment("other", 1, pod_spec(DRAINED, gpus=2)), DRAINED)
    before = await made.bound(DRAINED, 3)
    assert len(set(before.values())) == 2
    async with missing(made, "create", "pods/eviction"):
        await until("nobody may evict", lambda: _refused(made, "create", "pods/eviction"))
        await made.scale("Deployment", "goes", DRAINED, 0)
        await _named(made, controller, "create", "pods/eviction")
        await made.create(deployment("serve", 1, pod_spec(BESIDE)), BESIDE)
        await made.bound(BESIDE, 1)
        # It cannot be emptied, and is not ended.
        after = await made.bound(DRAINED, 2)
        assert after == {name: node for name, node in before.items() if not name.startswith("goes")}
        assert {node["metadata"]["name"] for node in await made.nodes(DRAINED)} == set(before.values())

    async def emptied() -> bool:
        return len(await made.nodes(DRAINED)) == 1

    await until("one of the machines is gone", emptied)
    assert set((await made.bound(DRAINED, 2)).values()) == {node["metadata"]["name"] for node in await made.nodes(DRAINED)}
    assert len(controller.told("ordered", pool=DRAINED)) == 2


@pytest.mark.parametrize("right", [name_of(verb, resource.label) for verb, resource in READS])
def test_a_right_to_read_that_is_missing_is_named_and_the_rest_is_read(outcomes: Outcomes, right: str) -> None:
    _told(outcomes, right)


@pytest.mark.parametrize("right", [name_of(verb, resource) for verb, resource, _ in WRITES])
def test_a_right_to_write_that_is_missing_is_named_and_all_is_well_once_it_is_there(outcomes: Outcomes, right: str) -> None:
    _told(outcomes, right)


def test_without_the_right_to_evict_it_is_named_a_machine_that_is_drained_stays_and_the_rest_goes_on(outcomes: Outcomes) -> None:
    _told(outcomes, EVICTING)


def _told(outcomes: Outcomes, right: str) -> None:
    failure = outcomes[right]
    if failure is not None:
        raise failure
