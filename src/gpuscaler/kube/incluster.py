"""A pod's access through its own service account, and the search for an access."""

import os
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from urllib.parse import urlsplit

from gpuscaler.kube.access import Access, from_kubeconfig
from gpuscaler.kube.credentials import TokenFile
from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.proxies import proxy_of
from gpuscaler.kube.tls import Tls

#: Where the kubelet mounts token, ca.crt and namespace.
SERVICE_ACCOUNT_FOLDER = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_OWNER = "the pod's service account"


def in_cluster(environ: Mapping[str, str], *, root: Path = SERVICE_ACCOUNT_FOLDER) -> Access:
    """The access that the kubelet gives a pod: the service ``kubernetes``, a token that is renewed on disk, the cluster's authority.

    Raises :class:`AccessError` outside of a pod, or in a pod without a service account token.
    """
    host, port = environ.get("KUBERNETES_SERVICE_HOST", ""), environ.get("KUBERNETES_SERVICE_PORT", "")
    if not host or not port:
        raise AccessError(
            "in-cluster access: saw no KUBERNETES_SERVICE_HOST and KUBERNETES_SERVICE_PORT, expected those of a pod; "
            "run in a pod or name a kubeconfig with --kubeconfig"
        )
    for name in ("token", "ca.crt"):
        if not (root / name).is_file():
            raise AccessError(
                f"{_OWNER}: saw no {root / name}, expected the kubelet to mount it; set automountServiceAccountToken: true on the pod"
            )
    tls = Tls(_OWNER, _OWNER, authority_file=root / "ca.crt")
    tls.context()
    server = f"https://{f'[{host}]' if ':' in host else host}:{port}"
    return Access(
        server=server,
        source=_OWNER,
        tls=tls,
        credentials=TokenFile(root / "token", _OWNER),
        namespace=_read_namespace(root / "namespace"),
        proxy=proxy_of(urlsplit(server), environ),
        in_pod=True,
    )


def find_access(
    environ: Mapping[str, str],
    *,
    kubeconfig: Path | None = None,
    context: str = "",
    attended: bool = False,
    now: Callable[[], float] = time.time,
    root: Path = SERVICE_ACCOUNT_FOLDER,
) -> Access:
    """The access as kubectl finds it: the named kubeconfig, else those of KUBECONFIG, else ``~/.kube/config``, else the pod's own.

    Missing files of KUBECONFIG are skipped, as in kubectl. Raises :class:`AccessError`, which lists the places that were searched.
    """
    if kubeconfig is not None:
        return from_kubeconfig([kubeconfig], context=context, environ=environ, attended=attended, now=now)
    listed = [Path(part) for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    home = environ.get("HOME", "")
    places = listed or ([Path(home) / ".kube" / "config"] if home else [])
    existing = [place for place in places if place.exists()]
    if existing:
        return from_kubeconfig(existing, context=context, environ=environ, attended=attended, now=now)
    if environ.get("KUBERNETES_SERVICE_HOST") and not context:
        return in_cluster(environ, root=root)
    searched = ", ".join(map(str, places)) or "no place, since KUBECONFIG and HOME are not set"
    raise AccessError(
        f"access to a cluster: saw no kubeconfig (looked at {searched}) and no pod's service account, expected one of the two; "
        "name a file with --kubeconfig or KUBECONFIG"
    )


def _read_namespace(path: Path) -> str:
    try:
        return path.read_text().strip() or "default"
    except OSError:
        return "default"
