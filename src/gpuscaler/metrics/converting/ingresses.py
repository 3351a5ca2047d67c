"""Converts Ingresses of extensions/v1beta1 and networking.k8s.io/v1beta1 to networking.k8s.io/v1.

Source: the Kubernetes guide on deprecated API versions.
"""

from typing import Any

from gpuscaler.metrics.converting.objects import Json, Say, items, mapping, seen

_CLASS = "kubernetes.io/ingress.class"


def convert(one: Json, say: Say) -> None:
    """Convert ``one`` to networking.k8s.io/v1."""
    one["apiVersion"] = "networking.k8s.io/v1"
    spec = mapping(one, "spec")
    if "backend" in spec:
        spec["defaultBackend"] = _backend(spec.pop("backend"))
    for rule in items(spec, "rules"):
        for path in items(seen(rule, "http"), "paths"):
            path["backend"] = _backend(path.get("backend"))
            path.setdefault("path", "/")
            path.setdefault("pathType", "ImplementationSpecific")
    if _CLASS in seen(seen(one, "metadata"), "annotations"):
        say(f"kept the annotation {_CLASS}; spec.ingressClassName replaces it if an IngressClass of that name exists")


def _backend(backend: Any) -> Any:
    if not isinstance(backend, dict) or "serviceName" not in backend:
        return backend
    port = backend.get("servicePort")
    service = {"name": backend["serviceName"], "port": {"number": port} if isinstance(port, int) else {"name": port}}
    return {**{key: value for key, value in backend.items() if key not in ("serviceName", "servicePort")}, "service": service}
