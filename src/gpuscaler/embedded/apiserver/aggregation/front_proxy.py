"""How the API server identifies its callers to servers that it proxies their requests to: a certificate, and headers.

Source: ``k8s.io/kubernetes/pkg/controlplane/controller/clusterauthenticationtrust`` and ``k8s.io/apiserver/pkg/authentication/request/
headerrequest``, Kubernetes 1.35.
"""

import ssl
from base64 import b64decode
from binascii import Error as Base64Error
from collections.abc import Mapping
from typing import Any, Final

from multidict import CIMultiDict

from gpuscaler.embedded.apiserver.kubectl.reviews import USER
from gpuscaler.serving.certificates import CertificateAuthority

#: The name in the certificate, and where its authority is published.
NAME: Final = "front-proxy-client"
NAMESPACE, CONFIG_MAP = "kube-system", "extension-apiserver-authentication"
_ACCOUNT: Final = "system:serviceaccount:"
#: The number of cached TLS contexts.
_MOST: Final = 16


class BundleError(ValueError):
    """An APIService's caBundle is unusable."""


class FrontProxy:
    """An authority made at ``now``, in seconds since the epoch, and its only certificate."""

    def __init__(self, *, now: float) -> None:
        self._authority = CertificateAuthority("gpuscaler front proxy", now=now)
        self._pair = self._authority.issue(NAME)
        self._contexts: dict[str | None, ssl.SSLContext] = {}

    def config_map(self) -> dict[str, Any]:
        """The ConfigMap in which servers read which certificate and headers to trust."""
        data = {
            "requestheader-allowed-names": f'["{NAME}"]',
            "requestheader-client-ca-file": self._authority.certificate.decode(),
            "requestheader-extra-headers-prefix": '["X-Remote-Extra-"]',
            "requestheader-group-headers": '["X-Remote-Group"]',
            "requestheader-uid-headers": '["X-Remote-Uid"]',
            "requestheader-username-headers": '["X-Remote-User"]',
        }
        return {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": CONFIG_MAP, "namespace": NAMESPACE}, "data": data}

    def context(self, bundle: str | None) -> ssl.SSLContext:
        """The TLS context for a server, which trusts the authorities in ``bundle`` (PEM in base64), or this machine's if that is empty.

        None trusts any server. Raises :class:`BundleError`.
        """
        cached = self._contexts.get(bundle)
        if cached is not None:
            return cached
        context = ssl.create_default_context() if bundle == "" else ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if bundle is None:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif bundle:
            try:
                context.load_verify_locations(cadata=b64decode(bundle).decode())
            except (Base64Error, ValueError, ssl.SSLError) as error:
                raise BundleError(f"caBundle: saw no certificates in PEM ({error}), expected authorities") from error
        if len(self._contexts) >= _MOST:
            self._contexts.clear()
        self._contexts[bundle] = self._pair.load_into(context)
        return context


def identity_headers(headers: Mapping[str, str]) -> CIMultiDict[str]:
    """The headers with the caller's identity: the user that the request is made for, else the user who may do everything."""
    user, groups = str(USER["username"]), list(USER["groups"])
    if name := headers.get("impersonate-user", ""):
        user, groups = name, [group for group in (headers.get("impersonate-group", ""),) if group]
        if name.startswith(_ACCOUNT) and not groups:
            groups = ["system:serviceaccounts", f"system:serviceaccounts:{name.removeprefix(_ACCOUNT).partition(':')[0]}"]
        groups.append("system:authenticated")
    return CIMultiDict([("X-Remote-User", user), *(("X-Remote-Group", group) for group in groups)])
