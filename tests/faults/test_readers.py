"""F98: who reaches our ports, and what they may read there about pods of other tenants."""

from pathlib import Path

import aiohttp
import pytest
from tests.control.records.test_listening import ROUTES, authenticated_pages, get
from tests.faults.kit import FILE
from tests.hostile.workloads import cluster_of, pod
from tests.metrics.api.scene import ReviewServer

from gpuscaler.control.records.listening import Listeners
from gpuscaler.model.reading.errors import SettingsError
from gpuscaler.settings.pools_file import parse_settings
from gpuscaler.settings.run_settings import PagesSettings

pytestmark = pytest.mark.looptime(False)


def test_f98_pages_without_authentication_cannot_be_served_on_a_public_address() -> None:
    with pytest.raises(SettingsError, match="expected a loopback address"):
        parse_settings(f"{FILE}\npages: {{address: ':8081'}}")


async def test_f98_a_web_site_whose_name_resolves_to_the_local_machine_cannot_read_pages() -> None:
    listeners = Listeners()
    await listeners.serve_pages(PagesSettings(port=0), ROUTES)
    url = f"http://127.0.0.1:{listeners.ports['pages']}/status"
    try:
        async with aiohttp.ClientSession() as session:
            async with session.get(url, headers={"Host": "rebound.example"}) as refused:
                assert refused.status == 403
            assert (await get(session, url))[0] == 200
    finally:
        await listeners.close()


async def test_f98_pages_on_other_addresses_require_a_token_and_permission(tmp_path: Path) -> None:
    api = ReviewServer(tokens={"tenant": {"username": "tenant"}}, allows=lambda _spec: False)
    async with authenticated_pages(tmp_path, api) as (session, url):
        assert [(await get(session, f"{url}/status", token))[0] for token in ("", "made-up", "tenant")] == [401, 401, 403]


def test_f98_the_value_of_an_invalid_annotation_is_not_repeated() -> None:
    (warning,) = cluster_of([pod("a", annotations={"gpuscaler.io/market": "hunter2"})]).warnings

    assert "gpuscaler.io/market: saw a value of 7 characters" in warning
    assert "hunter2" not in warning
