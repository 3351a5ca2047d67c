"""The script that compares a user's own subscription with our endpoint: it finds differences, keeps its cost limit, leaves nothing behind.

The subscription is a simulated one here, behind a port.
"""

import asyncio
import base64
import json
import os
import re
import signal
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from tests.embedded.azure.conftest import Azure
from tests.embedded.azure.contract import __main__ as program
from tests.embedded.azure.contract.agent_pools import CLUSTER_FREE, CLUSTER_PAID
from tests.embedded.azure.contract.comparing import Normalizer
from tests.embedded.azure.contract.failing import FAILING
from tests.embedded.azure.contract.paid import PAID
from tests.embedded.azure.contract.playing import AzureReport, compare, cost, our_side, size_without_quota
from tests.embedded.azure.contract.sides import TAG, Side
from tests.embedded.azure.contract.steps import FREE
from tests.embedded.contract.comparing import differences

from gpuscaler.clouds.azure.api.credentials import FixedToken
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.embedded.azure import SUBSCRIPTION, Conditions, Endpoint, Fault, making
from gpuscaler.embedded.azure.compute import scale_sets
from gpuscaler.embedded.azure.hardware.sizes import family
from gpuscaler.embedded.azure.wire.requests import Answer, Request

pytestmark = pytest.mark.looptime(False)  # sockets and processes take real time
RUN, SIZE, REFUSED = "gpuscaler-contract-0badcafe", "Standard_D2s_v5", "Standard_NC24ads_A100_v4"
ROOT = Path(__file__).parents[3]


class Subscription(Endpoint):
    """A simulated subscription that also has what only the script needs: networks, deletion of groups, lists of resources by tag."""

    def __init__(self, account: Any) -> None:
        super().__init__(account)
        self.networks: dict[str, dict[str, str]] = {}

    def handle(self, request: Request) -> Answer:
        path = request.path.lower()
        if "/providers/microsoft.network/" in path:
            return self._network(request, path)
        if path.endswith("/operationresults/group"):
            return Answer(200)
        if re.fullmatch(r"/subscriptions/[^/]+/resourcegroups/[^/]+", path) and request.method == "DELETE":
            return self._delete_group(request, path)
        if path.endswith(("/resources", "/resourcegroups")) and "%24filter" in request.query.replace("$", "%24"):
            return self._tagged(request, path)
        return super().handle(request)

    def _network(self, request: Request, path: str) -> Answer:
        if request.method == "DELETE":
            return Answer(202 if self.networks.pop(path, None) is not None else 204)
        self.networks[path] = json.loads(request.body)["tags"]
        return Answer(201, {}, b"{}")

    def _delete_group(self, request: Request, path: str) -> Answer:
        if (fault := self.faults.pick(request)) is not None:
            return Answer(fault.status, {}, json.dumps({"error": {"code": fault.code, "message": "no"}}).encode())
        key = (path.split("/")[2], path.split("/")[4])
        group = self.account.groups.pop(key, None)
        if group is None:
            return Answer(404)
        self.account.groups[key] = group
        for scale_set in list(group.scale_sets.values()):
            scale_sets.remove(self.account, scale_set)
        del self.account.groups[key]
        self.networks = {name: tags for name, tags in self.networks.items() if not name.startswith(path)}
        return Answer(202, {"location": f"{request.origin}/subscriptions/{SUBSCRIPTION}/operationresults/group"})

    def _tagged(self, request: Request, path: str) -> Answer:
        wanted = re.search(r"tagValue eq '([^']*)'", parse_qs(request.query)["$filter"][0])
        assert wanted
        groups = self.account.groups.values()
        sets = [(one.id, one.model.get("tags") or {}) for group in groups for one in group.scale_sets.values()]
        found = [*sets, *self.networks.items()] if path.endswith("/resources") else [(group.id, group.tags) for group in groups]
        rows = [{"id": name} for name, tags in found if tags.get(TAG) == wanted[1]]
        return Answer(200, {}, json.dumps({"value": rows}).encode())

    def leftovers(self) -> list[object]:
        """What is there beside the cluster."""
        groups = [group for group in self.account.groups.values() if not group.clusters and not group.managed_by]
        sets = [one.name for group in self.account.groups.values() for one in group.scale_sets.values() if "nodepool1" not in one.name]
        return [*(group.name for group in groups), *sets, *self.networks]


class Stage:
    """A served subscription, and the side of the script that plays in it. ``lines`` are what the script tells."""

    def __init__(self, azure: Azure, endpoint: Subscription) -> None:
        self.azure, self.endpoint, self.lines = azure, endpoint, list[str]()
        self.http = Http({})
        self.cluster = ""

    def side(self, *, wait: Callable[[float], Awaitable[None]] | None = None, group: str = "") -> Side:
        async def later(seconds: float) -> None:
            self.azure.later(seconds)

        def break_machines() -> None:
            making.add_trouble(self.azure.account, "VMExtensionProvisioningError", market="on-demand", size=SIZE, times=1)

        return Side(
            http=self.http,
            credentials=FixedToken("token"),
            endpoint=self.azure.url,
            subscription=SUBSCRIPTION,
            location="eastus",
            run=RUN,
            group=group or RUN,
            own_group=not group,
            size=SIZE,
            cluster=self.cluster,
            password="correct horse battery staple 1A!",
            now=lambda: self.azure.time,
            wait=wait or later,
            break_machines=break_machines,
        )

    async def play(self, side: Side | None = None, *, paid: bool = True) -> AzureReport:
        theirs = side or self.side()
        theirs.refused_size = await size_without_quota(theirs)
        return await compare(theirs, our_side(theirs), paid=paid, tell=self.lines.append)


@pytest.fixture
async def stage() -> AsyncIterator[Stage]:
    azure = Azure(conditions=Conditions())
    endpoint = Subscription(azure.account)
    azure.endpoint = endpoint
    making.set_quota(azure.account, family(REFUSED), 0)
    await azure.open()
    stage = Stage(azure, endpoint)
    yield stage
    await stage.http.close()
    await azure.close()


async def test_the_script_finds_no_differences_in_an_equal_subscription_and_leaves_it_unchanged(stage: Stage) -> None:
    stage.cluster = making.create_cluster(stage.azure.account, "aks", "clusters").id
    report = await stage.play()
    assert report.differences == {}, stage.lines
    assert report.steps == len((*FREE, *FAILING, *CLUSTER_FREE, *PAID, *CLUSTER_PAID)), stage.lines
    assert not [line for line in stage.lines if "odd" in line or "skipped" in line]
    assert (report.left, report.stopped, stage.endpoint.leftovers()) == ([], "", [])
    assert [pool.name for cluster in stage.azure.account.all_clusters() for pool in cluster.pools.values()] == ["nodepool1"]


async def test_free_steps_start_no_machines(stage: Stage) -> None:
    events: list[object] = []
    stage.azure.account.listeners.append(events.append)
    report = await stage.play(paid=False)
    assert report.steps == len((*FREE, *FAILING))
    assert events == []
    assert list(stage.azure.account.hardware.core.list()) == []


@pytest.mark.parametrize(
    ("changes", "question", "answer"),
    [
        ({"etag_of_deletions": False}, "a deletion by id changes the ETag", "never"),
        ({"etag_of_deletions": False}, "an eviction changes the ETag", "no"),
        ({"capacity_falls": "end"}, "a deletion by id lowers the capacity", "at the end"),
        ({"preempts": True}, "a deletion that a growth follows ends as", "Failed OperationPreempted"),
        ({"failed": "vanish"}, "a failed allocation leaves", "nothing"),
        ({"quota": "operation"}, "a quota that is too small is refused by", "the operation: Failed OperationNotAllowed"),
    ],
)
async def test_answers_to_open_questions_are_those_of_the_subscription(
    stage: Stage, changes: dict[str, Any], question: str, answer: str
) -> None:
    stage.azure.conditions(**changes)
    report = await stage.play()
    assert report.differences
    shown = [line for line in stage.lines if line.startswith(f"    {question}: ")][-1]
    assert shown.startswith(f"    {question}: {answer} (ours: "), shown
    assert (report.left, stage.endpoint.leftovers()) == ([], [])


async def test_a_difference_is_reported_with_both_answers_and_without_the_password(stage: Stage) -> None:
    stage.endpoint.faults.all.append(Fault(method="GET", path="*/instanceView", status=403, code="AuthorizationFailed"))
    stage.azure.conditions(retry_after=7)
    report = await stage.play(paid=False)
    assert "DIFFERENT views of scale sets" in stage.lines
    assert any("the account says 403, ours says 200" in line for line in report.differences["views of scale sets"])
    assert any("headers.retry-after: only the account has it: '7'" in line for line in report.differences["a Uniform scale set"])
    assert not any("correct horse" in line for line in stage.lines)


async def test_in_a_given_group_only_what_the_script_created_is_deleted(stage: Stage) -> None:
    making.create_scale_set(stage.azure.account, "theirs", "workers", SIZE, tags={"team": "red"})
    report = await stage.play(stage.side(group="theirs"), paid=False)
    assert report.differences == {}
    assert report.left == []
    assert stage.endpoint.leftovers() == ["theirs", "workers"]


async def test_a_group_that_does_not_exist_stops_the_script(stage: Stage) -> None:
    report = await stage.play(stage.side(group="none"), paid=False)
    assert report.stopped.startswith("none: saw 404 ResourceGroupNotFound, expected it to be usable")
    assert report.steps == 0


async def test_resources_that_cannot_be_deleted_are_named(stage: Stage) -> None:
    stage.endpoint.faults.all.append(Fault(method="DELETE", path="*", status=403, code="ScopeLocked"))
    report = await stage.play(paid=False)
    assert [line.split(":")[0] for line in report.left] == [f"resource group {RUN}"]
    assert any(line.startswith("STILL THERE: resource group") and "ScopeLocked" in line for line in stage.lines)


async def test_machines_that_never_come_are_ended_when_the_cost_limit_is_reached(stage: Stage) -> None:
    stage.azure.conditions(provisioning=1e6)
    report = await stage.play()
    assert report.stopped.startswith("the time is over that the cost limit assumes")
    assert stage.azure.time < 1_790_000_000 + 2.5 * 3600
    assert (report.left, stage.endpoint.leftovers()) == ([], [])


async def test_after_an_interruption_everything_is_deleted(stage: Stage) -> None:
    grows = asyncio.Event()

    async def wait(seconds: float) -> None:
        stage.azure.later(seconds)
        if stage.azure.account.owners:
            grows.set()
        await asyncio.sleep(0)

    playing = asyncio.create_task(stage.play(stage.side(wait=wait)))
    await grows.wait()
    playing.cancel()
    report = await playing
    assert report.stopped == "interrupted"
    assert (report.left, stage.endpoint.leftovers()) == ([], [])
    assert any(line.startswith("STOPPED   what was created is now deleted") for line in stage.lines)


async def test_a_deletion_is_repeated_while_something_else_runs(stage: Stage) -> None:
    stage.endpoint.faults.all.append(Fault(method="DELETE", path="*", status=409, code="OperationNotAllowed", times=3))
    report = await stage.play(paid=False)
    assert (report.left, stage.endpoint.leftovers()) == ([], [])


def test_values_that_always_differ_are_ignored_and_etags_are_compared_by_their_moves() -> None:
    signed = "https://management.azure.com/subscriptions/1/operations/2?p=3&api-version=4&t=5&c=secret&s=secret&h=secret"
    left = Normalizer({"aaa": "SUBSCRIPTION", "run-1": "RUN"})
    right = Normalizer({"bbb": "SUBSCRIPTION", "run-2": "RUN"})
    one = left.step(
        {"Location": signed, "id": "/subscriptions/aaa/RUN-1", "at": "2026-11-22T00:00:00.123+00:00", "etags": [{"etag": '"5"'}]}
    )
    two = right.step(
        {
            "Location": "http://127.0.0.1:1/subscriptions/1/operations/2?api-version=4",
            "id": "/subscriptions/bbb/RUN-2",
            "at": "2026-01-01T00:00:00Z",
            "etags": [{"etag": '"77"'}],
        }
    )
    assert list(differences(one, two)) == []
    assert "secret" not in str(one)
    moved = left.step([{"etag": '"5"'}, {"etag": '"6"'}]), right.step([{"etag": '"7"'}, {"etag": '"7"'}])
    assert list(differences(*moved)) == ["[1].etag: the account says '\"ETAG-#2\"', ours says '\"ETAG-#1\"'"]


def test_the_documented_cost_limit_is_that_of_the_most_expensive_run() -> None:
    assert cost(SIZE, "eastus") == pytest.approx(3 * 2 * 0.096)
    assert cost("Standard_Unknown", "eastus") == float("inf")


# The program

ID = "11111111-2222-4333-8444-555555555555"
OTHER_CLUSTER = f"/subscriptions/{SUBSCRIPTION}/resourceGroups/rg/providers/Microsoft.ContainerService/managedClusters/aks"


@pytest.mark.parametrize(
    ("arguments", "environ", "says"),
    [
        (["--subscription", ""], {}, "expected its id: make azure-contract SUBSCRIPTION="),
        (["--subscription", ID, "--dollars", "0.01"], {}, "Standard_D2s_v5 in eastus may cost $0.58, and --dollars allows $0.01"),
        (["--subscription", ID, "--dollars", "5"], {"AZURE_LOCATION": "mars"}, "Standard_D2s_v5 in mars may cost $inf"),
        (["--subscription", ID], {"AZURE_CLUSTER_ID": "aks"}, "saw AZURE_CLUSTER_ID=aks, expected the id of a resource"),
        (["--subscription", ID], {"AZURE_CLUSTER_ID": OTHER_CLUSTER}, f"expected a resource of the subscription {ID}"),
        (["--subscription", ID], {"AZURE_SUBNET_ID": "subnet"}, "saw AZURE_SUBNET_ID=subnet, expected the id of a resource"),
    ],
)
def test_the_program_stops_at_wrong_settings_or_a_low_cost_limit_before_it_makes_a_call(
    capsys: pytest.CaptureFixture[str], arguments: list[str], environ: dict[str, str], says: str
) -> None:
    assert program.main(arguments, environ) == 2
    assert says in capsys.readouterr().err


async def run_program(
    stage: Stage, *, subscription: str = SUBSCRIPTION, token: str = "token", **environ: str
) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "tests.embedded.azure.contract"),
        *("--subscription", subscription, "--endpoint", stage.azure.url),
        cwd=ROOT,
        env={"PATH": os.environ["PATH"], **({"AZURE_ACCESS_TOKEN": token} if token else {}), **environ},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )


async def test_the_error_names_a_subscription_that_does_not_exist(stage: Stage) -> None:
    process = await run_program(stage, subscription=ID)
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert "the subscription cannot be read: 404 SubscriptionNotFound" in errors.decode()


async def test_a_token_that_is_about_to_expire_is_not_used_since_what_is_created_must_be_deleted(stage: Stage) -> None:
    claims = base64.urlsafe_b64encode(json.dumps({"exp": time.time() + 600}).encode()).decode().rstrip("=")
    process = await run_program(stage, token=f"head.{claims}.signature")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert "saw AZURE_ACCESS_TOKEN that is valid for 10 more minutes, expected at least 20" in errors.decode()
    assert stage.endpoint.leftovers() == []


async def test_a_cluster_in_another_location_is_refused(stage: Stage) -> None:
    cluster = making.create_cluster(stage.azure.account, "aks", "clusters").id
    process = await run_program(stage, AZURE_CLUSTER_ID=cluster, AZURE_LOCATION="westeurope")
    _, errors = await process.communicate()
    assert process.returncode == 2
    assert "saw AZURE_CLUSTER_ID in eastus, expected a cluster in AZURE_LOCATION=westeurope" in errors.decode()


async def test_without_credentials_the_error_says_what_to_set(stage: Stage) -> None:
    process = await run_program(stage, token="", AZURE_CLIENT_SECRET="secret")
    _, errors = await process.communicate()
    assert process.returncode == 3
    assert "saw AZURE_CLIENT_SECRET without AZURE_CLIENT_ID, expected both" in errors.decode()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
async def test_ctrl_c_ends_the_program_after_it_has_deleted_everything(stage: Stage, number: signal.Signals) -> None:
    process = await run_program(stage)
    assert process.stdout is not None
    # The next step waits for an operation that ends only when this clock moves.
    async for line in process.stdout:
        if "scale sets that are refused" in line.decode():
            break
    assert stage.endpoint.leftovers()
    process.send_signal(number)
    output, errors = await process.communicate()
    assert (process.returncode, stage.endpoint.leftovers()) == (130, []), (output, errors)
    assert "things left" in output.decode()
