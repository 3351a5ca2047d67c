"""Kubernetes resources by the names that rules use: plural or singular, with their group, a part of it, or none.

Source: ``k8s.io/apimachinery/pkg/api/meta`` (``DefaultRESTMapper``, ``PriorityRESTMapper``).
"""

from collections.abc import Collection, Iterable, Mapping

from msgspec import Struct


class ResourceError(ValueError):
    """A name that is not a resource, or has several singulars. The text says which."""


class Resource(Struct, frozen=True, gc=False):
    """A resource: its plural, its singular (the kind in lower case), its group (empty for the core one)."""

    plural: str
    singular: str
    group: str = ""
    namespaced: bool = True

    @property
    def text(self) -> str:
        """``pods``, or ``deployments.apps``."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


def _table(group: str, namespaced: str, cluster: str = "") -> tuple[Resource, ...]:
    """Resources from their singulars; ``singular:plural`` if the plural is not formed with an s."""
    pairs = [(name, True) for name in namespaced.split()] + [(name, False) for name in cluster.split()]
    split = [(*name.partition(":"), inside) for name, inside in pairs]
    return tuple(Resource(plural or f"{singular}s", singular, group, inside) for singular, _, plural, inside in split)


#: Resources of every cluster, in the order in which a name without a group is looked up.
WELL_KNOWN: tuple[Resource, ...] = (
    *_table(
        "",
        "pod service configmap secret serviceaccount replicationcontroller persistentvolumeclaim endpoints:endpoints event limitrange "
        "resourcequota podtemplate",
        "namespace node persistentvolume componentstatus:componentstatuses",
    ),
    *_table("apps", "deployment statefulset daemonset replicaset controllerrevision"),
    *_table("batch", "job cronjob"),
    *_table("autoscaling", "horizontalpodautoscaler"),
    *_table("networking.k8s.io", "ingress:ingresses networkpolicy:networkpolicies", "ingressclass:ingressclasses"),
    *_table("policy", "poddisruptionbudget"),
    *_table("rbac.authorization.k8s.io", "role rolebinding", "clusterrole clusterrolebinding"),
    *_table("storage.k8s.io", "csistoragecapacity:csistoragecapacities", "storageclass:storageclasses volumeattachment csidriver csinode"),
    *_table("scheduling.k8s.io", "", "priorityclass:priorityclasses"),
    *_table("coordination.k8s.io", "lease"),
    *_table("discovery.k8s.io", "endpointslice"),
    *_table("apiextensions.k8s.io", "", "customresourcedefinition"),
    *_table("apiregistration.k8s.io", "", "apiservice"),
    *_table("resource.k8s.io", "resourceclaim resourceclaimtemplate", "deviceclass:deviceclasses resourceslice"),
)


#: The same resources by their full names.
RESOURCES_BY_TEXT: Mapping[str, Resource] = {resource.text: resource for resource in WELL_KNOWN}


class Resources:
    """The known resources, in the order in which they are looked up."""

    def __init__(self, resources: Iterable[Resource] = WELL_KNOWN) -> None:
        self.known = tuple(dict.fromkeys(resources))

    def find(self, name: str, group: str = "") -> Resource:
        """The resource called ``name``, plural or singular. Raises :class:`ResourceError`.

        Without a group the first resource of that name is returned. If no group matches exactly, a group may be the prefix of a longer one.
        """
        name = name.lower()
        named = [resource for resource in self.known if name in (resource.plural, resource.singular)]
        for resource in named:
            if not group or resource.group == group:
                return resource
        for resource in named:
            if resource.group.startswith(group):
                return resource
        scope = f" in the group {group}" if group else ""
        raise ResourceError(f"saw {name}{scope}, expected a resource of the cluster such as pod, namespace or deployment")

    def singular(self, plural: str) -> str:
        """The common singular of all resources called ``plural``. Raises :class:`ResourceError`."""
        singulars = {resource.singular for resource in self.known if plural.lower() in (resource.plural, resource.singular)}
        if len(singulars) != 1:
            raise ResourceError(f"saw {plural} with {len(singulars)} singulars, expected one")
        return singulars.pop()

    def parse(self, text: str) -> Resource:
        """Parse a resource such as ``pods`` or ``deployments.apps``. Raises :class:`ResourceError`."""
        name, _, group = text.partition(".")
        return self.find(name, group)


def full_resource_name(text: str, served: Collection[str]) -> str:
    """The full name of ``text``, a resource in a path, as the API server finds ``deployments`` in ``apps``.

    ``served`` are the resources with metrics, including custom ones. An unknown name is returned unchanged.
    """
    if text in RESOURCES_BY_TEXT or text in served:
        return text
    customs = [custom_resource(*name.partition(".")[::2]) for name in sorted(served) if name not in RESOURCES_BY_TEXT]
    try:
        return Resources((*WELL_KNOWN, *customs)).parse(text).text
    except ResourceError:
        return text


def custom_resource(name: str, group: str) -> Resource:
    """An unknown custom resource by its plural or singular: assumed to be namespaced, and with a regular English plural."""
    name = name.lower()
    if name.endswith("s") and not name.endswith("ss"):
        return Resource(name, f"{name[:-3]}y" if name.endswith("ies") else name[:-1], group)
    if name.endswith("y") and name[-2:-1] not in tuple("aeiou"):
        return Resource(f"{name[:-1]}ies", name, group)
    return Resource(f"{name}es" if name.endswith(("s", "x", "z", "ch", "sh")) else f"{name}s", name, group)
