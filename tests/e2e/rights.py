"""The rights that the chart grants to the controller, one by one, and installations that lack some of them for a while."""

import asyncio
from collections.abc import AsyncIterator, Collection, Coroutine, Iterable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from functools import partial
from typing import NamedTuple

import msgspec
from tests.e2e.stage import ACCOUNT, CLUSTER_ROLES, KINDS, Controller, Json, Stage, client, roles, until

from gpuscaler.control.records.status.reporting import KEY
from gpuscaler.kube.access import from_kubeconfig
from gpuscaler.kube.client import Client
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import Resource

#: Settings of controllers that reconcile often.
QUICK: Json = {"http": {"enabled": False}, "pace": {"resync": "2s", "consolidate": "2s"}}
#: The result of the test of each right: an error, or None.
Outcomes = dict["Right", BaseException | None]

REVIEWS = Resource("authorization.k8s.io", "v1", "subjectaccessreviews", "SubjectAccessReview", namespaced=False)
RBAC = "rbac.authorization.k8s.io"
#: Namespaces other than the installation's own in which it has rights.
ELSEWHERE, NODE_LEASES = "kube-system", "kube-node-lease"


class Right(NamedTuple):
    """A verb on a resource (``pods/eviction``) of an API group.

    ``place`` is empty for the installation's own namespace and the whole cluster, otherwise it is the namespace.
    """

    verb: str
    resource: str
    group: str = ""
    place: str = ""

    def __str__(self) -> str:
        group, place = (f".{self.group}" if self.group else ""), (f" in {self.place}" if self.place else "")
        return f"{self.verb} {self.resource}{group}{place}"

    @property
    def denial(self) -> str:
        """The API server's message for a missing right."""
        return f'cannot {self.verb} resource "{self.resource}" in API group "{self.group}"'


def parts(role: Json) -> Iterator[tuple[Right, Json]]:
    """Each right of a role, with a rule that grants nothing else."""
    namespace = role["metadata"].get("namespace", "")
    place = namespace if namespace in (ELSEWHERE, NODE_LEASES) else ""
    for rule in role["rules"]:
        for group in rule["apiGroups"]:
            for resource in rule["resources"]:
                for verb in rule["verbs"]:
                    single = {**rule, "apiGroups": [group], "resources": [resource], "verbs": [verb]}
                    yield Right(verb, resource, group, place), single


def granted() -> list[Right]:
    """All rights that the chart grants to the controller. The chart's reader Role is left out, because it is for people."""
    own = (role for role in roles() if "rules" in role and not role["metadata"]["name"].endswith("-reader"))
    return sorted({right for role in own for right, _ in parts(role)})


def without_rights(role: Json, taken: Collection[Right]) -> Json:
    """The role without the rights in ``taken``."""
    return {**role, "rules": [rule for right, rule in parts(role) if right not in taken]}


async def allowed(stage: Stage, user: str, right: Right, name: str = "") -> bool:
    """Whether the API server's authorizer grants a right to ``user``, for the object ``name`` if one is given."""
    plural, _, part = right.resource.partition("/")
    place = right.place or stage.home
    asked = {"verb": right.verb, "group": right.group, "resource": plural, "subresource": part, "namespace": place, "name": name}
    body = {"apiVersion": "authorization.k8s.io/v1", "kind": REVIEWS.kind, "spec": {"user": user, "resourceAttributes": asked}}
    is_allowed: bool = msgspec.json.decode(await stage.admin.create(REVIEWS, body))["status"]["allowed"]
    return is_allowed


@dataclass
class Installed:
    """gpuscaler, installed from the chart in the home namespace of ``stage``, without the rights in ``taken``."""

    stage: Stage
    taken: set[Right] = field(default_factory=set)
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    @property
    def roles(self) -> list[Json]:
        return [role for role in roles(self.stage.home) if "rules" in role]

    async def take(self, *rights: Right) -> None:
        """Take rights away, and wait until the API server's authorizer refuses them."""
        self.taken |= set(rights)
        await self._apply()
        for right in rights:
            await until(f"{right} is refused", partial(self._refused, right))

    async def give(self, *rights: Right) -> None:
        self.taken -= set(rights)
        await self._apply()

    @asynccontextmanager
    async def without(self, *rights: Right) -> AsyncIterator[None]:
        await self.take(*rights)
        try:
            yield
        finally:
            await self.give(*rights)

    async def _apply(self) -> None:
        async with self._lock:
            for role in self.roles:
                await self.stage.apply(KINDS[role["kind"]], without_rights(role, self.taken))

    async def _refused(self, right: Right) -> bool:
        """Whether the API server refuses a right for every object for which the chart grants it."""
        rules = [rule for role in self.roles for item, rule in parts(role) if item == right]
        user = f"system:serviceaccount:{self.stage.home}:{ACCOUNT}"
        names = [name for rule in rules for name in rule.get("resourceNames", [""])]
        return not any([await allowed(self.stage, user, right, name) for name in names])

    async def named(self, controller: Controller, right: Right) -> None:
        """Wait until the log or the status reports the missing right."""
        # Quotes are escaped in both.
        words = right.denial.replace('"', "")

        async def reported() -> bool:
            status = await self.stage.state("gpuscaler-status") or {}
            return words in f"{controller.log.read_text()}{status}".replace("\\", "").replace('"', "")

        await until(f"{right.denial} is reported", reported)

    async def well(self, *rights: Right) -> None:
        """Wait until the status no longer reports ``rights`` as missing."""

        async def observed() -> bool:
            status = (await self.stage.state("gpuscaler-status") or {}).get("data", {}).get(KEY, "")
            return not any(right.denial.replace('"', '\\"') in status for right in rights)

        await until("no right is reported missing any more", observed)


async def installed(made: Stage, home: str) -> Installed:
    """Install gpuscaler in the namespace ``home``."""
    stage = replace(made, home=home)
    await stage.install()
    return Installed(stage)


@dataclass
class LimitedUser:
    """A user with the controller's cluster-wide rights except some, and the user's ``client``."""

    stage: Stage
    name: str
    client: Client

    async def may(self, taken: Collection[Right] = ()) -> None:
        """Grant all cluster-wide rights except ``taken``."""
        await self.stage.apply(CLUSTER_ROLES, without_rights({**_whole(), "metadata": {"name": self.name}}, taken))


def _whole() -> Json:
    """The controller's ClusterRole."""
    (role,) = [role for role in roles() if role["kind"] == "ClusterRole"]
    return role


@asynccontextmanager
async def limited_user(made: Stage, name: str, taken: Collection[Right]) -> AsyncIterator[LimitedUser]:
    access = from_kubeconfig([made.plane.write_kubeconfig(name, pair=made.plane.certificate(name))], environ={})
    async with HttpTransport(access) as transport:
        somebody = LimitedUser(made, name, client(transport))
        await somebody.may(taken)
        binding = {
            "apiVersion": f"{RBAC}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "subjects": [{"kind": "User", "name": name, "apiGroup": RBAC}],
            "roleRef": {"apiGroup": RBAC, "kind": "ClusterRole", "name": name},
        }
        await made.apply(KINDS["ClusterRoleBinding"], binding)
        other = next(right for right, _ in parts(_whole()) if right not in taken)
        await until(f"{name} may {other}", partial(allowed, made, name, other))
        yield somebody


async def keep(outcomes: Outcomes, rights: Iterable[Right], test: Coroutine[None, None, None]) -> None:
    """Run ``test``, and store its result for each of ``rights`` that no other test has failed."""
    (failure,) = await asyncio.gather(test, return_exceptions=True)
    outcomes.update({right: outcomes.get(right) or failure for right in rights})
