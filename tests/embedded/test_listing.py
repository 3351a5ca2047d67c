"""Lists: selectors, pages, and pages that have expired."""

import asyncio
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.embedded.asking import CONFIG_MAPS, PODS, Asker, asker, config_map, pod, virtual_clock
from tests.soaking import examples

from gpuscaler.embedded.apiserver.api import ApiServer


async def _named(ask: Asker, path: str, **query: Any) -> list[str]:
    return [item["metadata"]["name"] for item in (await ask.ok("GET", path, **query))["items"]]


async def test_list_items_are_sorted_and_have_neither_kind_nor_version() -> None:
    ask = asker()
    for name in ("b", "a", "c"):
        await ask.ok("POST", CONFIG_MAPS, config_map(name))
    listed = await ask.ok("GET", CONFIG_MAPS)
    assert (listed["kind"], listed["apiVersion"]) == ("ConfigMapList", "v1")
    assert [item["metadata"]["name"] for item in listed["items"]] == ["a", "b", "c"]
    assert not any("kind" in item or "apiVersion" in item for item in listed["items"])


async def test_the_list_of_a_namespace_has_only_its_objects() -> None:
    ask = asker()
    for namespace in ("default", "kube-system", "kube-public"):
        await ask.ok("POST", CONFIG_MAPS.replace("default", namespace), config_map(namespace))
    assert await _named(ask, CONFIG_MAPS.replace("default", "kube-public")) == ["kube-public"]
    assert await _named(ask, "/api/v1/configmaps") == ["default", "kube-public", "kube-system"]


@pytest.mark.parametrize(
    ("labels", "fields", "names"),
    [
        ("", "", ["a", "b", "c"]),
        ("app=web", "", ["a", "b"]),
        ("app==web,tier!=front", "", ["b"]),
        ("app in (web, db),!tier", "", ["b", "c"]),
        ("tier", "", ["a"]),
        ("app notin (web)", "", ["c"]),
        ("size>3", "", ["b"]),
        ("", "metadata.name=b", ["b"]),
        ("", "spec.nodeName=n", ["a"]),
        ("", "spec.nodeName!=n,metadata.namespace=default", ["b", "c"]),
        ("", "status.phase==Pending", ["a", "b", "c"]),
        ("app=web", "spec.nodeName=", ["b"]),
    ],
)
async def test_label_and_field_selectors_filter_lists(labels: str, fields: str, names: list[str]) -> None:
    ask = asker()
    await ask.ok("POST", PODS, pod("a", labels={"app": "web", "tier": "front"}))
    await ask.ok("POST", PODS, pod("b", labels={"app": "web", "size": "4"}))
    await ask.ok("POST", PODS, pod("c", labels={"app": "db", "size": "3"}))
    await ask.ok("POST", f"{PODS}/a/binding", {"target": {"name": "n"}})
    assert await _named(ask, PODS, labelSelector=labels, fieldSelector=fields) == names


@pytest.mark.parametrize(
    "query", [{"labelSelector": "a=b=c"}, {"labelSelector": "in ("}, {"fieldSelector": "spec.cat=1"}, {"fieldSelector": "metadata.name"}]
)
async def test_an_invalid_selector_is_a_bad_request(query: dict[str, Any]) -> None:
    status, answer = await asker()("GET", PODS, **query)
    assert (status, answer["reason"]) == (400, "BadRequest")


async def test_all_pages_show_the_list_at_the_revision_of_the_first_page() -> None:
    ask = asker()
    for i in range(5):
        await ask.ok("POST", CONFIG_MAPS, config_map(f"c{i}"))
    first = await ask.ok("GET", CONFIG_MAPS, limit="2")
    assert first["metadata"]["remainingItemCount"] == 3
    await ask.ok("DELETE", f"{CONFIG_MAPS}/c4")
    await ask.ok("POST", CONFIG_MAPS, config_map("c31"))
    rest = await ask.ok("GET", CONFIG_MAPS, limit="10", **{"continue": first["metadata"]["continue"]})
    assert [item["metadata"]["name"] for item in rest["items"]] == ["c2", "c3", "c4"]
    assert rest["metadata"] == {"resourceVersion": first["metadata"]["resourceVersion"]}


async def test_an_expired_continue_token_is_refused_with_a_token_for_the_current_rest() -> None:
    api = ApiServer(virtual_clock)
    ask = asker(api)
    for i in range(4):
        await ask.ok("POST", CONFIG_MAPS, config_map(f"c{i}"))
    first = await ask.ok("GET", CONFIG_MAPS, limit="2")
    api.forget()
    await ask.ok("DELETE", f"{CONFIG_MAPS}/c2")
    status, answer = await ask("GET", CONFIG_MAPS, limit="2", **{"continue": first["metadata"]["continue"]})
    assert (status, answer["reason"]) == (410, "Expired")
    assert await _named(ask, CONFIG_MAPS, **{"continue": answer["metadata"]["continue"]}) == ["c3"]


async def test_with_too_many_open_lists_the_oldest_expires() -> None:
    ask = asker()
    for i in range(3):
        await ask.ok("POST", CONFIG_MAPS, config_map(f"c{i}"))
    tokens = [(await ask.ok("GET", CONFIG_MAPS, limit="1"))["metadata"]["continue"] for _ in range(65)]
    assert (await ask("GET", CONFIG_MAPS, **{"continue": tokens[0]}))[0] == 410
    assert (await ask("GET", CONFIG_MAPS, **{"continue": tokens[-1]}))[0] == 200


@pytest.mark.parametrize(
    ("query", "code"),
    [
        ({"continue": "?"}, 400),
        ({"continue": "eyJ9"}, 400),
        ({"limit": "-1"}, 422),
        ({"resourceVersion": "new"}, 400),
        ({"resourceVersion": "99999"}, 504),
        ({"resourceVersionMatch": "Exact"}, 422),
        ({"resourceVersion": "1", "resourceVersionMatch": "Exact"}, 410),
        ({"resourceVersion": "0", "resourceVersionMatch": "NotOlderThan"}, 200),
    ],
)
async def test_invalid_list_requests_are_refused(query: dict[str, Any], code: int) -> None:
    assert (await asker()("GET", CONFIG_MAPS, **query))[0] == code


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 300), st.booleans()), max_size=150), st.integers(1, 40))
def test_the_pages_of_a_list_contain_every_item_once(changes: list[tuple[str, int, bool]], limit: int) -> None:
    async def check() -> None:
        api = ApiServer(virtual_clock)
        ask = asker(api)
        kept: set[tuple[str, str]] = set()
        for namespace, number, add in changes:
            name = f"c{number}"
            if add and (namespace, name) not in kept:
                api.load([{**config_map(name), "metadata": {"name": name, "namespace": namespace}}])
                kept.add((namespace, name))
            elif not add and (namespace, name) in kept:
                await ask.ok("DELETE", f"/api/v1/namespaces/{namespace}/configmaps/{name}")
                kept.discard((namespace, name))
        names: list[tuple[str, str]] = []
        query: dict[str, Any] = {"limit": str(limit)}
        while True:
            page = await ask.ok("GET", "/api/v1/configmaps", **query)
            assert len(page["items"]) <= limit
            names += [(item["metadata"]["namespace"], item["metadata"]["name"]) for item in page["items"]]
            if "continue" not in page["metadata"]:
                break
            query["continue"] = page["metadata"]["continue"]
        assert names == sorted(kept, key="/".join)

    asyncio.run(check())
