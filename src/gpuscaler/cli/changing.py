"""What-if changes to the input of a plan: more pods, fewer pools, other prices."""

import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

if TYPE_CHECKING:
    from gpuscaler.model.cluster import Cluster
    from gpuscaler.model.pools import Policy

#: Kinds that create pods from a template, and the field with their number.
REPLICA_FIELDS: Mapping[str, str] = {
    "Deployment": "replicas",
    "ReplicaSet": "replicas",
    "ReplicationController": "replicas",
    "StatefulSet": "replicas",
    "Job": "parallelism",
}
#: More pods than this from one file are treated as a mistake.
MOST_PODS = 100_000
#: Larger files are not treated as manifests.
MOST_BYTES = 4 * 1024**2


def without_pools(policy: "Policy", names: Sequence[str]) -> "Policy":
    """Return ``policy`` without the pools of these names. Their nodes stay, and belong to no pool."""
    from msgspec.structs import replace

    pool_names = {pool.name for pool in policy.pools}
    for name in names:
        if name not in pool_names:
            raise click.BadParameter(
                f"saw {name!r}, expected a pool of the file: {_suggest_names(name, pool_names)}", param_hint="--without-pool"
            )
    remaining = tuple(pool for pool in policy.pools if pool.name not in names)
    if names and not remaining:
        raise click.BadParameter("saw every pool of the file, expected at least one that remains", param_hint="--without-pool")
    return replace(policy, pools=remaining)


def with_prices(policy: "Policy", prices: Sequence[str]) -> "Policy":
    """Return ``policy`` with other prices: ``TYPE=USD``, or ``TYPE/MARKET=USD`` for one market. Reserved offerings keep their price."""
    from msgspec.structs import replace

    for text in prices:
        kind, market, price = _price(text)
        sold = {(offering.instance_type, offering.market) for offering in policy.offerings.values()}
        selected = {offer for offer in sold if offer[0] == kind and (offer[1] == market if market else offer[1] != "reserved")}
        if not selected:
            types = {one for one, _ in sold} | {f"{one}/{market}" for one, market in sold}
            name = text.partition("=")[0]
            raise click.BadParameter(
                f"saw {name!r}, expected an instance type of the file: {_suggest_names(name, types)}", param_hint="--price"
            )
        pools = tuple(
            replace(
                pool,
                offerings=tuple(
                    replace(offering, price=price) if (offering.instance_type, offering.market) in selected else offering
                    for offering in pool.offerings
                ),
            )
            for pool in policy.pools
        )
        policy = replace(policy, pools=pools)
    return policy


def _price(text: str) -> tuple[str, str, float]:
    name, _, amount = text.partition("=")
    kind, _, market = name.partition("/")
    try:
        price = float(amount)
    except ValueError:
        price = -1.0
    if not kind or not isfinite(price) or price <= 0:
        raise click.BadParameter(f"saw {text!r}, expected TYPE=USD such as g5.xlarge=0.35, dollars per hour above 0", param_hint="--price")
    return kind, market, price


def _suggest_names(word: str, options: set[str]) -> str:
    matches = get_close_matches(word, options, 1)
    return f"did you mean {matches[0]}?" if matches else ", ".join(sorted(options)[:20])


def with_pods(cluster: "Cluster", files: Sequence[str], *, now: float) -> "Cluster":
    """Return ``cluster`` with the objects of ``files``: pods, and the pods of Deployments and Jobs, are pending since ``now``.

    If a file cannot be used, the command ends with exit code 2.
    """
    return with_objects(cluster, ((file, raw) for file in files for raw in _read_objects(file)), now=now)


def with_objects(cluster: "Cluster", objects: Iterable[tuple[str, dict[str, Any]]], *, now: float) -> "Cluster":
    """As :func:`with_pods`, with the origin of each object for messages."""
    from gpuscaler.model.aside import Skipped
    from gpuscaler.model.cluster import Delta, Item
    from gpuscaler.model.decoding import Interner, decode_object
    from gpuscaler.model.pods import Pod

    interner = Interner()
    added: list[Item] = []
    added_keys: set[str] = set()
    for file, manifest in objects:
        for raw in _with_template_pods(file, manifest, now):
            decoded = decode_object(raw, interner)
            if isinstance(decoded, Skipped):
                _refuse(f"{file}: {decoded.object}: {decoded.reason}")
            if decoded is None:
                continue
            items: Iterable[Item] = decoded if isinstance(decoded, Sequence) else [decoded]
            for item in items:
                if isinstance(item, Pod):
                    if item.key in cluster.pods or item.key in added_keys:
                        source = "the cluster" if item.key in cluster.pods else "the files"
                        _refuse(f"{file}: Pod {item.key}: a pod with that name already exists in {source}; rename it")
                    added_keys.add(item.key)
                added.append(item)
    return cluster.apply(Delta(tuple(added)))


def priorities_in(file: str) -> str:
    """Return the priorities YAML in ``file``: the key ``priorities`` if it holds a ConfigMap, else the whole text."""
    with click.open_file(file, "rb") as stream:
        text = stream.read().decode()
    data = [
        _mapping(mapping.get("data")).get("priorities") for mapping in _mappings(_documents(text)) if mapping.get("kind") == "ConfigMap"
    ]
    return next((value for value in data if isinstance(value, str)), text)


def input_hints(cluster: "Cluster", files: Sequence[str]) -> Iterator[str]:
    """Yield hints for a user whose ``files`` contain no pods: manifests are not a snapshot of what runs."""
    if cluster.pods:
        return
    for file in files:
        documents = _documents(_readable(file))
        kinds = [
            mapping for mapping in _mappings(documents) if isinstance(mapping.get("kind"), str) and not mapping["kind"].endswith("List")
        ]
        objects = [f"{kind['kind']} {_mapping(kind.get('metadata')).get('name', '')}".strip() for kind in kinds]
        makers = [name for name in objects if name.partition(" ")[0] in REPLICA_FIELDS]
        if makers:
            seen = _first_names(makers)
            yield f"{file}: saw {seen} and no pods, expected pods, because plans are made for pods; --add-pods {file} creates them"
        elif objects and not cluster.nodes:
            seen = _first_names(objects)
            yield f"{file}: saw {seen}, expected nodes and pods, as kubectl get nodes,pods --all-namespaces -o yaml prints them"


def _readable(file: str) -> bytes:
    """Return the content of a small file, and nothing for any other. Standard input has already been consumed."""
    try:
        path = Path(file)
        return b"" if file == "-" or path.stat().st_size > MOST_BYTES else path.read_bytes()
    except OSError:
        return b""


def _documents(text: str | bytes) -> list[Any]:
    """Return the documents of a YAML or JSON text; none if it is neither."""
    import yaml

    try:
        return list(yaml.load_all(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except (yaml.YAMLError, ValueError, RecursionError):
        return []


def _mappings(documents: Sequence[Any]) -> list[dict[str, Any]]:
    """Return the documents that are mappings, with Lists expanded into their items."""
    listed = [items for document in documents if isinstance(items := _mapping(document).get("items"), list)]
    return [document for group in (documents, *listed) for document in group if isinstance(document, dict)]


def _first_names(names: Sequence[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def _read_objects(file: str) -> Iterator[dict[str, Any]]:
    """Yield the objects of a file as mappings, with Lists expanded into their items."""
    import yaml

    try:
        with click.open_file(file, "rb") as stream:
            documents = list(yaml.load_all(stream.read(), Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader)))
    except OSError as error:
        _refuse(f"{file}: saw {error.strerror}, expected a readable file with Kubernetes objects")
    except (yaml.YAMLError, UnicodeDecodeError, ValueError, RecursionError) as error:
        _refuse(f"{file}: saw neither YAML nor JSON ({' '.join(str(error).split())}), expected Kubernetes objects")
    for document in documents:
        if document is None:
            continue
        items = document.get("items") if isinstance(document, dict) and str(document.get("kind", "")).endswith("List") else [document]
        for item in items if isinstance(items, list) else []:
            if not isinstance(item, dict) or not isinstance(item.get("kind"), str) or not isinstance(item.get("metadata"), dict):
                _refuse(f"{file}: saw an object without kind and metadata, expected Kubernetes objects")
            yield item


def _with_template_pods(file: str, raw: dict[str, Any], now: float) -> Iterator[dict[str, Any]]:
    """Yield an object, and the pods that it would create."""
    metadata = {"namespace": "default", **raw["metadata"]}
    if raw["kind"] == "Pod":
        yield _as_pending({**raw, "metadata": metadata}, now)
        return
    yield {**raw, "metadata": metadata}
    if raw["kind"] in REPLICA_FIELDS:
        spec = _mapping(raw.get("spec"))
        count = spec.get(REPLICA_FIELDS[raw["kind"]], 1)
        template = _mapping(spec.get("template"))
        if not template or not isinstance(count, int) or not 0 <= count <= MOST_PODS:
            name = f"{raw['kind']} {metadata['namespace']}/{metadata.get('name', '')}"
            _refuse(f"{file}: {name}: saw no template or no usable count, expected a manifest that kubectl apply accepts")
        yield from (_as_pending(_pod_of_template(raw, metadata, template, number), now) for number in range(count))


def _pod_of_template(owner: Mapping[str, Any], metadata: Mapping[str, Any], template: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the pod that the object's controller would create from its template."""
    name = str(metadata.get("name", ""))
    reference = {"apiVersion": owner.get("apiVersion", ""), "kind": owner["kind"], "name": name, "uid": f"added-{name}", "controller": True}
    pod_metadata = {
        **_mapping(template.get("metadata")),
        "name": f"{name}-{number}",
        "namespace": metadata["namespace"],
        "ownerReferences": [reference],
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": pod_metadata, "spec": template.get("spec", {})}


def _as_pending(pod: dict[str, Any], now: float) -> dict[str, Any]:
    """Return the pod as if it had just been created and the scheduler had found no node for it."""
    from datetime import UTC, datetime

    moment = f"{datetime.fromtimestamp(now, UTC):%Y-%m-%dT%H:%M:%SZ}"
    spec = {key: value for key, value in _mapping(pod.get("spec")).items() if key != "nodeName"}
    metadata = dict(pod["metadata"])
    metadata.setdefault("name", metadata.get("generateName", ""))
    metadata |= {"uid": f"added-{metadata['namespace']}-{metadata['name']}", "creationTimestamp": moment}
    metadata.pop("deletionTimestamp", None)
    scheduled = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": moment}
    return {**pod, "metadata": metadata, "spec": spec, "status": {"phase": "Pending", "conditions": [scheduled]}}


def _mapping(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _refuse(message: str) -> NoReturn:
    click.echo(message, err=True)
    sys.exit(2)
