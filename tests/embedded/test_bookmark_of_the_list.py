"""A watch that begins with a list ends the list with a bookmark at the revision at which the list was taken."""

import asyncio
import json

from gpuscaler.embedded.apiserver.api import ApiServer
from gpuscaler.kube.transport import Request


async def test_changes_made_during_a_streamed_list_follow_its_bookmark() -> None:
    api = ApiServer(lambda: 0.0)
    query = {"watch": "true", "allowWatchBookmarks": "true", "sendInitialEvents": "true", "resourceVersionMatch": "NotOlderThan"}
    async with api.handle(Request("GET", "/api/v1/nodes", query)) as answer:
        body = json.dumps({"apiVersion": "v1", "kind": "Node", "metadata": {"name": "late"}}).encode()
        async with api.handle(Request("POST", "/api/v1/nodes", {}, {"content-type": "application/json"}, body)) as created:
            late = json.loads(b"".join([piece async for piece in created.pieces]))
        async with asyncio.timeout(5):
            mark = json.loads(await anext(aiter(answer.pieces)))

    assert mark["type"] == "BOOKMARK"
    assert int(mark["object"]["metadata"]["resourceVersion"]) < int(late["metadata"]["resourceVersion"])
