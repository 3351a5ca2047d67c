"""``python -m tests.embedded.azure.contract --subscription ID``: make the same calls to a user's own subscription and to our endpoint.

Credentials are those of the environment, as gpuscaler finds them: AZURE_CLIENT_ID, AZURE_TENANT_ID and AZURE_CLIENT_SECRET or
AZURE_FEDERATED_TOKEN_FILE, else a managed identity; or AZURE_ACCESS_TOKEN, such as `az account get-access-token` prints. AZURE_LOCATION,
AZURE_VM_SIZE, AZURE_RESOURCE_GROUP, AZURE_SUBNET_ID and AZURE_CLUSTER_ID choose where and what. Exit 0 if both agree, 1 if they differ or
something is left over, 2 if the arguments are invalid, 3 if the subscription cannot be read, 130 after Ctrl-C.
"""

import argparse
import asyncio
import base64
import json
import os
import re
import secrets
import signal
import sys
import time
from collections.abc import Mapping

from tests.embedded.azure.contract.playing import AzureReport, compare, cost, our_side, size_without_quota
from tests.embedded.azure.contract.sides import RESOURCES, Side, StoppedError

from gpuscaler.clouds.azure.api.arm import CONTAINERSERVICE
from gpuscaler.clouds.azure.api.credentials import ENDPOINT_URL, Credentials, FixedToken, credentials_from
from gpuscaler.clouds.azure.api.http import Http
from gpuscaler.clouds.protocol import CloudError

_ID = re.compile(r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}", re.IGNORECASE)
#: The time that a token must leave for steps, and for the deletion of everything.
_LEAST_SECONDS, _DELETION_SECONDS = 300.0, 900.0
_RESOURCE = r"/subscriptions/[^/]+/resourceGroups/[^/]+/providers/"
_CLUSTER = re.compile(rf"{_RESOURCE}Microsoft\.ContainerService/managedClusters/[^/]+", re.IGNORECASE)
_SUBNET = re.compile(rf"{_RESOURCE}Microsoft\.Network/virtualNetworks/[^/]+/subnets/[^/]+", re.IGNORECASE)


def main(arguments: list[str] | None = None, environ: Mapping[str, str] = os.environ) -> int:
    options = parse_arguments(arguments)
    if not _ID.fullmatch(options.subscription):
        return wrong(f"saw the subscription {options.subscription!r}, expected its id: make azure-contract SUBSCRIPTION=…")
    location, size = environ.get("AZURE_LOCATION") or "eastus", environ.get("AZURE_VM_SIZE") or "Standard_D2s_v5"
    cluster, subnet = environ.get("AZURE_CLUSTER_ID", ""), environ.get("AZURE_SUBNET_ID", "")
    for name, value, pattern in (("AZURE_CLUSTER_ID", cluster, _CLUSTER), ("AZURE_SUBNET_ID", subnet, _SUBNET)):
        if value and not pattern.fullmatch(value):
            return wrong(f"saw {name}={value}, expected the id of a resource, /subscriptions/…")
        if value and value.split("/")[2].lower() != options.subscription.lower():
            return wrong(f"saw {name}={value}, expected a resource of the subscription {options.subscription}")
    ends = token_end(environ.get("AZURE_ACCESS_TOKEN", ""))
    if ends - time.time() < _LEAST_SECONDS + _DELETION_SECONDS:
        minutes = max(0.0, ends - time.time()) / 60
        least = (_LEAST_SECONDS + _DELETION_SECONDS) / 60
        return wrong(f"saw AZURE_ACCESS_TOKEN that is valid for {minutes:.0f} more minutes, expected at least {least:.0f}")
    most = cost(size, location)
    if options.dollars > 0 and most > options.dollars:
        return wrong(
            f"{size} in {location} may cost ${most:.2f}, and --dollars allows ${options.dollars:.2f}; allow more, or 0 for free calls"
        )
    try:
        return asyncio.run(_run(options, environ, location=location, size=size, cluster=cluster, subnet=subnet, most=most, ends=ends))
    except (KeyboardInterrupt, asyncio.CancelledError):
        print("interrupted: what was created may still be there, with the tag gpuscaler-contract", file=sys.stderr)
        return 130


async def _run(
    options: argparse.Namespace,
    environ: Mapping[str, str],
    *,
    location: str,
    size: str,
    cluster: str,
    subnet: str,
    most: float,
    ends: float,
) -> int:
    # A stop of the process ends the script as Ctrl-C does.
    task = asyncio.current_task()
    assert task is not None
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    run, given = f"gpuscaler-contract-{secrets.token_hex(4)}", environ.get("AZURE_RESOURCE_GROUP", "")
    http = Http(environ)
    theirs = Side(
        http=http,
        credentials=_credentials(environ, http, options.endpoint),
        endpoint=options.endpoint,
        subscription=options.subscription,
        location=location,
        run=run,
        group=given or run,
        own_group=not given,
        size=size,
        subnet=subnet,
        cluster=cluster,
        password=f"{secrets.token_urlsafe(24)}aA1!",
        wait=asyncio.sleep,
        # What is created must be deleted with the same token.
        deadline=ends - _DELETION_SECONDS,
    )
    try:
        shown = await theirs.get(f"/subscriptions/{options.subscription}", version=RESOURCES)
        if shown.status != 200:
            error = shown.fields.get("error") or {}
            raise StoppedError(f"{shown.status} {error.get('code', '')}: {error.get('message', '')}")
        if cluster:
            found = await theirs.get(cluster, version=CONTAINERSERVICE)
            if found.fields.get("location") != location:
                return wrong(f"saw AZURE_CLUSTER_ID in {found.fields.get('location')}, expected a cluster in AZURE_LOCATION={location}")
        theirs.refused_size = await size_without_quota(theirs)
        paid = options.dollars > 0
        print(
            f"subscription {options.subscription}, {location}, {size}; all resources are named {run}; at most ${most if paid else 0:.2f}",
            flush=True,
        )
        report = await compare(theirs, our_side(theirs), paid=paid, tell=lambda line: print(line, flush=True))
    except (StoppedError, CloudError) as error:
        print(f"the subscription cannot be read: {error}", file=sys.stderr)
        return 3
    finally:
        await http.close()
    return _outcome(report)


def _outcome(report: AzureReport) -> int:
    print(report.summary())
    if report.stopped == "interrupted":
        return 130
    return 1 if report.differences or report.left or report.stopped else 0


def _credentials(environ: Mapping[str, str], http: Http, endpoint: str) -> Credentials:
    token = environ.get("AZURE_ACCESS_TOKEN", "")
    return FixedToken(token) if token else credentials_from(environ, http, time.time, endpoint_url=endpoint)


def token_end(token: str) -> float:
    """When an access token ends, in seconds since the epoch; infinite if there is none, or it does not show that."""
    try:
        part = token.split(".")[1]
        return float(json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))["exp"])
    except (IndexError, ValueError, KeyError, TypeError):
        return float("inf")


def wrong(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.embedded.azure.contract", description=__doc__)
    parser.add_argument("--subscription", required=True, help="the subscription's id, so that no other one is touched")
    parser.add_argument("--dollars", type=float, default=0.0, help="limit for the cost of machines; 0, the default, starts none")
    parser.add_argument("--endpoint", default=ENDPOINT_URL, help="Azure Resource Manager of another cloud (default: the public one)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
