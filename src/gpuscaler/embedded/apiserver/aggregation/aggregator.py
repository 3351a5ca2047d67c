"""Proxies requests to the servers that APIServices name, and checks which of them answer.

Sources: ``k8s.io/kube-aggregator/pkg/apiserver/handler_proxy.go`` and ``…/controllers/status/remote``, Kubernetes 1.35.
"""

import asyncio
import errno
import os
from collections.abc import Callable, Mapping
from typing import Any, Final
from urllib.parse import urlencode

import aiohttp
import msgspec
from aiohttp.client_exceptions import ClientError
from yarl import URL

from gpuscaler.embedded.apiserver.aggregation.front_proxy import BundleError, FrontProxy, identity_headers
from gpuscaler.embedded.apiserver.aggregation.registered import (
    UnavailableError,
    WireApiService,
    WireReference,
    find_endpoint,
    list_api_services,
    read,
)
from gpuscaler.embedded.apiserver.kinds import API_SERVICES, ENDPOINTS, KINDS, SERVICES
from gpuscaler.embedded.apiserver.kubectl.discovery import AGGREGATED
from gpuscaler.embedded.apiserver.store import Store, change_in
from gpuscaler.embedded.apiserver.wire.replies import reply, text_reply
from gpuscaler.kube.transport import Answer, Request

#: The time-out in seconds of a check, and the default time-out of a request.
_CHECK, _REQUEST = 5.0, 60.0
#: Seconds between checks, if all answer and if some do not.
RARELY, SOON = 10.0, 1.0
#: Headers of requests and answers that are passed on; the caller's name is sent only by the front proxy.
_ASKED: Final = ("accept", "accept-encoding", "content-type", "if-none-match", "user-agent")
_ANSWERED: Final = ("content-type", "content-encoding", "etag", "retry-after", "vary", "warning", "x-content-type-options")
#: The user name of checks.
_CHECKER: Final = {"impersonate-user": "system:kube-aggregator", "impersonate-group": "system:masters"}
_LOCAL: Final = frozenset((kind.group, kind.version) for kind in KINDS)
_GROUPS: Final = frozenset(kind.group for kind in KINDS)

Json = dict[str, Any]


class Aggregator:
    """Answers requests for aggregated APIs while :meth:`run` runs. ``timestamp`` is the API server's time."""

    def __init__(self, store: Store, proxy: FrontProxy, *, timestamp: Callable[[], str]) -> None:
        self._store, self._proxy, self._timestamp = store, proxy, timestamp
        self._session: aiohttp.ClientSession | None = None
        #: The discovery document of each group and version.
        self._served: dict[tuple[str, str], Json] = {}

    async def run(self) -> None:
        """Keep the conditions of all APIServices current until cancelled."""
        watched = [self._store[kind] for kind in (API_SERVICES, SERVICES, ENDPOINTS)]
        try:
            while True:
                before = [collection.position for collection in watched]
                well = await self._check()
                if [collection.position for collection in watched] == before:
                    await change_in(watched, RARELY if well else SOON)
        finally:
            if self._session is not None:
                await self._session.close()

    async def answer(self, request: Request) -> Answer | None:
        """The answer to a request for an aggregated API; None for any other request."""
        steps = request.path.split("/", 4)
        if len(steps) < 4 or steps[1] != "apis" or tuple(steps[2:4]) in _LOCAL:
            return None
        stored = self._store.get(API_SERVICES, f"{steps[3]}.{steps[2]}")
        api_service = None if stored is None else read(stored)
        if api_service is None or api_service.spec.service is None:
            return None
        if not api_service.available:
            return text_reply("service unavailable\n", status=503)
        try:
            return await self._proxy_request(api_service, api_service.spec.service, request)
        except (ClientError, OSError, TimeoutError, BundleError) as error:
            return text_reply(f"error trying to reach service: {describe_client_error(error)}\n", status=503)
        except UnavailableError:
            return text_reply("service unavailable\n", status=503)

    def groups(self) -> dict[str, list[Json]]:
        """Every aggregated group with its versions, in the form of discovery; a version whose server does not answer is stale."""
        by_group: dict[str, list[Json]] = {}
        for _, api_service in list_api_services(self._store):
            key = (api_service.spec.group, api_service.spec.version)
            if api_service.spec.service is not None and api_service.spec.group not in _GROUPS:
                stale = {"version": api_service.spec.version, "freshness": "Stale"}
                by_group.setdefault(api_service.spec.group, []).append(self._served.get(key, stale) if api_service.available else stale)
        return by_group

    async def _proxy_request(self, api_service: WireApiService, service: WireReference, request: Request) -> Answer:
        context = self._proxy.context(None if api_service.spec.insecure else api_service.spec.ca_bundle or "")
        headers = identity_headers(request.headers)
        headers.update({name: request.headers[name] for name in _ASKED if name in request.headers})
        query = f"?{urlencode(request.query)}" if request.query else ""
        call = self._client().request(
            request.method,
            _url(find_endpoint(self._store, service), f"{request.path}{query}"),
            headers=headers,
            data=request.body or None,
            ssl=context,
            server_hostname=api_service.host,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(request.timeout or _REQUEST),
        )
        async with call as response:
            response_headers = {name: response.headers[name] for name in _ANSWERED if name in response.headers}
            return reply(await response.read(), status=response.status, headers=response_headers)

    def _client(self) -> aiohttp.ClientSession:
        if self._session is None:
            # Compressed bodies stay compressed; the client that reads them has asked for that.
            self._session = aiohttp.ClientSession(auto_decompress=False, skip_auto_headers=("Accept", "Accept-Encoding", "Content-Type"))
        return self._session

    async def _check(self) -> bool:
        """Check every API once; returns whether all answer."""
        every = list_api_services(self._store)
        conditions = await asyncio.gather(*(self._condition(api_service) for _, api_service in every))
        for (name, _), condition in zip(every, conditions, strict=True):
            self._set_condition(name, condition)
        return all(condition["status"] == "True" for condition in conditions)

    async def _condition(self, api_service: WireApiService) -> Json:
        if api_service.spec.service is None:
            return _available_condition("True", "Local", "Local APIServices are always available")
        path = f"/apis/{api_service.spec.group}/{api_service.spec.version}"
        try:
            url = _url(find_endpoint(self._store, api_service.spec.service), path)
        except UnavailableError as error:
            return _available_condition("False", error.reason, str(error))
        try:
            await self._fetch(url, {})
            await self._discover(api_service, url)
        except (ClientError, OSError, TimeoutError, ValueError) as error:
            why = f"failing or missing response from {url}: {describe_client_error(error)}"
            return _available_condition("False", "FailedDiscoveryCheck", why)
        return _available_condition("True", "Passed", "all checks passed")

    async def _fetch(self, url: URL, headers: Mapping[str, str]) -> bytes:
        """The answer to a check, from any server: an untrusted certificate is noticed only by real requests."""
        request_headers = identity_headers(_CHECKER)
        request_headers.update(headers)
        timeout = aiohttp.ClientTimeout(_CHECK)
        context = self._proxy.context(None)
        async with self._client().get(url, headers=request_headers, ssl=context, allow_redirects=False, timeout=timeout) as response:
            body = await response.read()
            if not 200 <= response.status < 300:
                raise ValueError(f"bad status from {url}: {response.status}")
            return body

    async def _discover(self, api_service: WireApiService, url: URL) -> None:
        """Store the server's discovery document. If it does not support the newer form, clients use the older one."""
        key = (api_service.spec.group, api_service.spec.version)
        try:
            document = msgspec.json.decode(await self._fetch(url.with_path("/apis"), {"accept": AGGREGATED}))
            versions = next(item["versions"] for item in document["items"] if item["metadata"]["name"] == api_service.spec.group)
            self._served[key] = next(item for item in versions if item["version"] == api_service.spec.version)
        except (ValueError, LookupError, TypeError, StopIteration):
            self._served.pop(key, None)

    def _set_condition(self, name: str, condition: Json) -> None:
        stored = self._store.get(API_SERVICES, name)
        if stored is None:
            return
        obj = stored.read()
        status = obj.get("status") or {}
        others = [item for item in status.get("conditions") or () if item.get("type") != condition["type"]]
        before: Json = next((item for item in status.get("conditions") or () if item.get("type") == condition["type"]), {})
        since = before.get("lastTransitionTime") if before.get("status") == condition["status"] else None
        updated = {**condition, "lastTransitionTime": since or self._timestamp()}
        if updated != before:
            self._store.put(API_SERVICES, {**obj, "status": {**status, "conditions": [*others, updated]}})


def _available_condition(status: str, reason: str, message: str) -> Json:
    return {"type": "Available", "status": status, "reason": reason, "message": message}


def describe_client_error(error: Exception) -> str:
    """A description of the error, similar to Go's; the client's own text would name objects of this process."""
    match error:
        case aiohttp.ClientConnectorCertificateError():
            return f"tls: failed to verify certificate: {error.certificate_error}"
        case aiohttp.ClientConnectorError():
            return f"dial tcp {error.host}:{error.port}: {os.strerror(error.os_error.errno or errno.EIO)}"
        case _:
            return str(error) or type(error).__name__


def _url(where: tuple[str, int], target: str) -> URL:
    host, port = where
    return URL(f"https://{f'[{host}]' if ':' in host else host}:{port}{target}", encoded=True)
