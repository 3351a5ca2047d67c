"""Tokens: workload identity, client secret, managed identity, and callers without a valid one."""

import json
from base64 import urlsafe_b64encode
from typing import Any

import pytest
from tests.embedded.azure.conftest import BEGAN, Azure

from gpuscaler.embedded.azure import TENANT

SCOPE = "https://management.azure.com/.default"


def assertion(expiry: float) -> str:
    claims = urlsafe_b64encode(json.dumps({"exp": expiry}).encode()).decode().rstrip("=")
    return f"eyJhbGciOiJSUzI1NiJ9.{claims}.c2ln"


async def ask(azure: Azure, tenant: str = TENANT, **form: str) -> tuple[int, dict[str, Any]]:
    assert azure.http is not None
    wanted = {"grant_type": "client_credentials", "client_id": "me", "scope": SCOPE, **form}
    async with azure.http.post(f"{azure.url}/{tenant}/oauth2/v2.0/token", data=wanted) as response:
        return response.status, await response.json()


async def test_a_federated_token_is_exchanged_and_the_result_is_accepted(azure: Azure, workers: str) -> None:
    azure.conditions(authorization="issued")
    status, reply = await ask(azure, client_assertion=assertion(BEGAN + 600), client_assertion_type="jwt-bearer")
    assert (status, reply["token_type"], reply["expires_in"]) == (200, "Bearer", 3599)
    assert (await azure.call("GET", workers, Authorization=f"Bearer {reply['access_token']}"))[0] == 200
    azure.later(3600)
    status, refused, _ = await azure.call("GET", workers, Authorization=f"Bearer {reply['access_token']}")
    assert (status, refused["error"]["code"]) == (401, "ExpiredAuthenticationToken")


async def test_callers_without_a_token_or_with_an_unknown_one_are_refused(azure: Azure, workers: str) -> None:
    azure.conditions(authorization="issued")
    status, refused, headers = await azure.call("GET", workers)
    assert (status, refused["error"]["code"]) == (401, "AuthenticationFailed")
    assert "Bearer authorization_uri" in headers["www-authenticate"]
    status, refused, _ = await azure.call("GET", workers, Authorization="Bearer other")
    assert (status, refused["error"]["code"]) == (401, "InvalidAuthenticationToken")


@pytest.mark.parametrize(
    ("tenant", "form", "number"),
    [
        ("other", {"client_secret": "s"}, 90002),
        (TENANT, {"client_assertion": assertion(BEGAN - 1)}, 700024),
        (TENANT, {"client_secret": "wrong"}, 7000215),
        (TENANT, {"client_secret": "s", "client_id": "unknown"}, 700016),
        (TENANT, {"client_secret": "s", "scope": "https://management.azure.com"}, 1002012),
    ],
)
async def test_wrong_credentials_are_refused_in_the_words_of_the_identity_platform(
    azure: Azure, tenant: str, form: dict[str, str], number: int
) -> None:
    azure.account.clients = {"me"}
    azure.account.wrong_secrets = {"wrong"}
    status, refused = await ask(azure, tenant, **form)
    assert status in {400, 401}
    assert refused["error_codes"] == [number]
    assert f"AADSTS{number}" in refused["error_description"]


async def test_a_managed_identity_gets_a_token_from_the_metadata_service(azure: Azure) -> None:
    path = "/metadata/identity/oauth2/token?api-version=2018-02-01&resource=https://management.azure.com/"
    assert (await azure.call("GET", path))[0] == 400
    status, reply, _ = await azure.call("GET", path, Metadata="true")
    assert status == 200
    assert reply["access_token"] in azure.account.tokens
    assert int(reply["expires_on"]) == int(BEGAN) + 3599
