"""The names of the containers on this node, by pod UID and by container id, read from files alone.

For each container that it starts, the kubelet creates a symbolic link in ``/var/log/containers`` for log collectors:
``<pod>_<namespace>_<container>-<container id>.log`` to ``/var/log/pods/<namespace>_<pod>_<pod UID>/<container>/<restarts>.log``
(Kubernetes 1.35, ``pkg/kubelet/kuberuntime/legacy.go``). Only the link is read. The logs themselves need not be mounted.
"""

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from gpuscaler.exporter.parts import Owner

#: Characters that Kubernetes allows in names; other files may have any name.
_NAME: Final = r"[-.a-zA-Z0-9]+"
_TARGET: Final = re.compile(rf"/({_NAME})_({_NAME})_({_NAME})/({_NAME})/[^/]*")
# The kubelet truncates a file name that would be too long, and with it the id.
_LINK: Final = re.compile(r".*-([0-9a-f]{64})\.log")


class ContainerNames:
    """The containers that have links in ``folder``; finished ones are included until the kubelet removes them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._links: dict[str, Owner | None] = {}
        self._by_id: dict[str, Owner] = {}
        self._pods: dict[str, tuple[str, str]] = {}
        self._uids: dict[tuple[str, str], set[str]] = {}

    def refresh(self) -> None:
        """Read new links. A folder that cannot be read has no links."""
        try:
            names = {link.name for link in self._folder.iterdir()}
        except OSError:
            names = set()
        if names == self._links.keys():
            return
        self._links = {name: self._links[name] if name in self._links else self._read(name) for name in names}
        owners = {name: owner for name, owner in self._links.items() if owner is not None}
        self._by_id = {match[1]: owner for name, owner in owners.items() if (match := _LINK.fullmatch(name))}
        self._pods = {owner.uid: (owner.namespace, owner.pod) for owner in owners.values()}
        self._uids = {}
        for uid, pod in self._pods.items():
            self._uids.setdefault(pod, set()).add(uid)

    def container(self, container_id: str) -> Owner | None:
        return self._by_id.get(container_id)

    def pod(self, uid: str) -> tuple[str, str] | None:
        """Namespace and name of a pod."""
        return self._pods.get(uid)

    def uids(self, namespace: str, pod: str) -> Iterable[str]:
        """The UIDs of pods with this name: a pod that was recreated under the same name is listed beside the old one for a while."""
        return self._uids.get((namespace, pod), ())

    def _read(self, name: str) -> Owner | None:
        try:
            target = str((self._folder / name).readlink())
        except OSError:
            return None
        match = _TARGET.search(target)
        return Owner(match[1], match[2], match[4], match[3]) if match else None
