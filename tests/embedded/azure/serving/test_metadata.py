"""Scheduled events, and the control path that causes them."""

from typing import Any

from tests.embedded.azure.conftest import SIZE, Azure

from gpuscaler.embedded.azure import SUBSCRIPTION, making
from gpuscaler.embedded.azure.state import ScaleSet

PATH = "/metadata/scheduledevents?api-version=2020-07-01"


def spots(azure: Azure, name: str = "aks-spot-12345678-vmss", count: int = 2) -> ScaleSet:
    return making.create_scale_set(azure.account, "rg", name, SIZE, count=count, spot=True)


async def events(azure: Azure, machine: str = "") -> dict[str, Any]:
    status, document, _ = await azure.call("GET", f"/_machines/{machine}{PATH}" if machine else PATH, Metadata="true")
    assert status == 200
    shown: dict[str, Any] = document
    return shown


async def test_the_service_requires_its_header_and_a_version(azure: Azure) -> None:
    assert (await azure.call("GET", PATH))[0] == 400
    assert (await azure.call("GET", "/metadata/scheduledevents", version="", Metadata="true"))[0] == 400
    assert await events(azure) == {"DocumentIncarnation": 1, "Events": []}


async def test_an_eviction_is_announced_starts_and_ends(azure: Azure) -> None:
    scale_set = spots(azure)
    before = (await events(azure))["DocumentIncarnation"]
    await azure.call("PUT", "/_control/interrupt", {"machine": "aks-spot-12345678-vmss_1", "notice": 30})
    document = await events(azure)
    (event,) = document["Events"]
    assert document["DocumentIncarnation"] > before
    assert (event["EventType"], event["EventStatus"], event["Resources"]) == ("Preempt", "Scheduled", ["aks-spot-12345678-vmss_1"])
    assert event["NotBefore"] == "Mon, 21 Sep 2026 14:13:50 GMT"
    assert await events(azure) == document
    azure.later(31)
    assert (await events(azure))["Events"] == []
    assert list(scale_set.machines) == ["0"]


async def test_an_acknowledged_event_starts_at_once(azure: Azure) -> None:
    scale_set = spots(azure)
    await azure.call("PUT", "/_control/interrupt", {"machine": "aks-spot-12345678-vmss_0"})
    (event,) = (await events(azure))["Events"]
    wanted = {"StartRequests": [{"EventId": event["EventId"]}]}
    assert (await azure.call("POST", PATH, wanted, Metadata="true"))[0] == 200
    assert list(scale_set.machines) == ["1"]
    assert (await azure.call("POST", PATH, wanted, Metadata="true"))[0] == 400


async def test_a_machine_gets_the_events_of_its_whole_scale_set_and_no_others(azure: Azure) -> None:
    spots(azure)
    spots(azure, "aks-other-12345678-vmss")
    await azure.call("PUT", "/_control/events", {"machine": "aks-spot-12345678-vmss_1", "kind": "Reboot", "seconds": 900})
    assert len((await events(azure, "aks-spot-12345678-vmss_0"))["Events"]) == 1
    assert len((await events(azure, "aks-spot-12345678-vmss000000"))["Events"]) == 1
    assert (await events(azure, "aks-other-12345678-vmss_0"))["Events"] == []
    azure.later(901)
    (event,) = (await events(azure, "aks-spot-12345678-vmss_0"))["Events"]
    assert (event["EventStatus"], event["NotBefore"]) == ("Started", "")


async def test_a_deletion_is_announced_where_the_scale_set_says_so_and_starts_when_it_is_acknowledged(azure: Azure) -> None:
    notification = {"terminateNotificationProfile": {"enable": True, "notBeforeTimeout": "PT10M"}}
    profile = {"virtualMachineProfile": {"scheduledEventsProfile": notification}}
    scale_set = making.create_scale_set(azure.account, "rg", "own", SIZE, count=2, properties=profile)
    await azure.call("POST", f"{scale_set.id}/delete", {"instanceIds": ["0", "1"]})
    azure.later(300)
    first, second = (await events(azure))["Events"]
    assert (first["EventType"], first["Resources"]) == ("Terminate", ["own_0"])
    await azure.call("POST", PATH, {"StartRequests": [{"EventId": first["EventId"]}]}, Metadata="true")
    azure.later(31)
    assert list(scale_set.machines) == ["1"]
    assert [event["EventId"] for event in (await events(azure))["Events"]] == [second["EventId"]]
    azure.later(300)
    assert scale_set.machines == {}
    assert (await events(azure))["Events"] == []


async def test_a_market_that_shrinks_announces_its_evictions(azure: Azure) -> None:
    spots(azure)
    await azure.call("PUT", "/_control/capacity", {"machines": 1, "market": "spot", "size": SIZE})
    assert [event["EventType"] for event in (await events(azure))["Events"]] in ([], ["Preempt"])
    azure.later(300)
    assert len(azure.account.scale_set(SUBSCRIPTION, "rg", "aks-spot-12345678-vmss").machines) == 1
