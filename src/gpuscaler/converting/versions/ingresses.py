"""Converts Ingresses of extensions/v1beta1 and networking.k8s.io/v1beta1 to networking.k8s.io/v1.

Source: the Kubernetes guide on deprecated API versions.
"""

from typing import Any

from gpuscaler.converting.objects import AddNote, Json, ensure_mapping, get_items, get_mapping

_CLASS = "kubernetes.io/ingress.class"


def convert(manifest: Json, add_note: AddNote) -> None:
    """Convert ``manifest`` to networking.k8s.io/v1."""
    manifest["apiVersion"] = "networking.k8s.io/v1"
    spec = ensure_mapping(manifest, "spec")
    if "backend" in spec:
        spec["defaultBackend"] = _backend(spec.pop("backend"))
    for rule in get_items(spec, "rules"):
        for path in get_items(get_mapping(rule, "http"), "paths"):
            path["backend"] = _backend(path.get("backend"))
            path.setdefault("path", "/")
            path.setdefault("pathType", "ImplementationSpecific")
    if _CLASS in get_mapping(get_mapping(manifest, "metadata"), "annotations"):
        add_note(f"kept the annotation {_CLASS}; spec.ingressClassName replaces it if an IngressClass of that name exists")


def _backend(backend: Any) -> Any:
    if not isinstance(backend, dict) or "serviceName" not in backend:
        return backend
    port = backend.get("servicePort")
    service = {"name": backend["serviceName"], "port": {"number": port} if isinstance(port, int) else {"name": port}}
    return {**{key: value for key, value in backend.items() if key not in ("serviceName", "servicePort")}, "service": service}
