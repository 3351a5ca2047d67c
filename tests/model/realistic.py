"""Kubernetes objects as sent by an API server, including fields that planning does not read: 3 to 6 kB per pod."""

import json
from collections.abc import Iterator
from typing import Any, BinaryIO

Json = dict[str, Any]
CREATED = "2026-03-01T08:00:00Z"


def pod(number: int, *, node: str = "", replicas: int = 50, managed_fields: bool = False) -> Json:
    """Return pod ``number``; each group of ``replicas`` pods belongs to one ReplicaSet."""
    owner = number // replicas
    namespace, app, token = f"team-{owner % 40}", f"model-server-{owner}", f"kube-api-access-{number % 46656:05x}"
    name = f"{app}-{owner * 7919 % 2**36:09x}-{number % 60466176:05x}"
    requests = {"cpu": f"{1 + owner % 8}", "memory": f"{2 + owner % 30}Gi", "nvidia.com/gpu": str(1 + owner % 4)}
    metadata: Json = {
        "name": name,
        "generateName": name[:-5],
        "namespace": namespace,
        "uid": f"{number:08x}-1111-4222-8333-{owner:012x}",
        "resourceVersion": str(10_000_000 + number),
        "creationTimestamp": CREATED,
        "labels": {"app": app, "pod-template-hash": f"{owner:09x}", "team": namespace, "tier": "serving"},
        "annotations": {"kubectl.kubernetes.io/default-container": "server", "prometheus.io/scrape": "true", "checksum/config": "0f" * 32},
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": name[:-6],
                "uid": f"{owner:08x}-aaaa-4bbb-8ccc-000000000000",
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
    }
    if managed_fields:
        metadata["managedFields"] = [_managed(manager) for manager in ("kube-controller-manager", "kubelet")]
    spec: Json = {
        "volumes": [_token_volume(token), {"name": "cache", "emptyDir": {}}, {"name": "config", "configMap": {"name": f"{app}-config"}}],
        "containers": [_container("server", requests, token), _container("metrics", {"cpu": "100m", "memory": "128Mi"}, token)],
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 60,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": "default",
        "serviceAccount": "default",
        "securityContext": {"fsGroup": 1000},
        "schedulerName": "default-scheduler",
        "nodeSelector": {"gpuscaler.io/pool": f"pool-{owner % 6}"},
        "tolerations": [
            {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"},
            {"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
            {"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }
    if node:
        spec["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec, "status": _status(number, node, spec["containers"])}


def _container(name: str, requests: Json, token: str) -> Json:
    environment = [{"name": f"SETTING_{index}", "value": f"value-{index}-of-{name}"} for index in range(6)]
    return {
        "name": name,
        "image": f"registry.example.com/platform/{name}:v1.42.{len(name)}",
        "command": ["/usr/bin/serve", "--port=8080", "--config=/etc/config/settings.yaml"],
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [*environment, {"name": "POD_IP", "valueFrom": {"fieldRef": {"apiVersion": "v1", "fieldPath": "status.podIP"}}}],
        "resources": {"limits": requests, "requests": requests},
        "volumeMounts": [
            {"name": "cache", "mountPath": "/cache"},
            {"name": "config", "mountPath": "/etc/config"},
            {"name": token, "readOnly": True, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"},
        ],
        "livenessProbe": {"httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10},
        "terminationMessagePath": "/dev/termination-log",
        "imagePullPolicy": "IfNotPresent",
    }


def _token_volume(name: str) -> Json:
    sources = [
        {"serviceAccountToken": {"expirationSeconds": 3607, "path": "token"}},
        {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
        {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": {"apiVersion": "v1", "fieldPath": "metadata.namespace"}}]}},
    ]
    return {"name": name, "projected": {"sources": sources, "defaultMode": 420}}


def _status(number: int, node: str, containers: list[Json]) -> Json:
    if not node:
        condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "lastTransitionTime": CREATED}
        return {"phase": "Pending", "conditions": [condition | {"message": "0/5000 nodes are available"}], "qosClass": "Guaranteed"}
    kinds = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled")
    return {
        "phase": "Running",
        "conditions": [{"type": kind, "status": "True", "lastProbeTime": None, "lastTransitionTime": CREATED} for kind in kinds],
        "hostIP": "10.0.0.1",
        "podIP": f"10.{number % 250}.{number // 250 % 250}.7",
        "startTime": CREATED,
        "containerStatuses": [
            {
                "name": container["name"],
                "state": {"running": {"startedAt": CREATED}},
                "lastState": {},
                "ready": True,
                "restartCount": 0,
                "image": container["image"],
                "imageID": f"{container['image']}@sha256:{'ab' * 32}",
                "containerID": f"containerd://{number:064x}",
                "started": True,
                "allocatedResources": container["resources"]["requests"],
                "resources": container["resources"],
            }
            for container in containers
        ],
        "qosClass": "Guaranteed",
    }


def _managed(manager: str) -> Json:
    fields: Json = {f"f:field{index}": {".": {}, f"f:part{index}": {}, "f:value": {}} for index in range(25)}
    return {"manager": manager, "operation": "Update", "apiVersion": "v1", "time": CREATED, "fieldsType": "FieldsV1", "fieldsV1": fields}


def node(number: int, *, managed_fields: bool = False) -> Json:
    """Return a node with eight GPUs."""
    name, zone = f"ip-10-{number // 250}-{number % 250}-1.ec2.internal", f"us-east-1{'abc'[number % 3]}"
    metadata: Json = {
        "name": name,
        "uid": f"{number:08x}-9999-4888-8777-666666666666",
        "creationTimestamp": CREATED,
        "labels": {
            "kubernetes.io/hostname": name,
            "kubernetes.io/arch": "amd64",
            "kubernetes.io/os": "linux",
            "node.kubernetes.io/instance-type": "p4d.24xlarge",
            "topology.kubernetes.io/zone": zone,
            "topology.kubernetes.io/region": "us-east-1",
            "gpuscaler.io/pool": f"pool-{number % 6}",
            **{f"example.com/label-{index}": f"value-{index}" for index in range(12)},
        },
    }
    if managed_fields:
        metadata["managedFields"] = [_managed("kubelet")]
    amounts = {"cpu": "95690m", "memory": "1163346944Ki", "ephemeral-storage": "76224326324", "nvidia.com/gpu": "8", "pods": "250"}
    status = {
        "capacity": amounts | {"cpu": "96"},
        "allocatable": amounts,
        "conditions": [{"type": "Ready", "status": "True", "lastTransitionTime": CREATED}],
        "images": [{"names": [f"registry.example.com/image-{index}@sha256:{'cd' * 32}"], "sizeBytes": 10**9} for index in range(30)],
    }
    taints = [{"key": "nvidia.com/gpu", "effect": "NoSchedule"}]
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": metadata,
        "spec": {"providerID": f"aws:///{zone}/i-{number:017x}", "taints": taints},
        "status": status,
    }


def objects(pods: int, nodes: int, *, managed_fields: bool = False) -> Iterator[Json]:
    """Yield nodes, then pods spread over them."""
    names = []
    for number in range(nodes):
        machine = node(number, managed_fields=managed_fields)
        names.append(machine["metadata"]["name"])
        yield machine
    for number in range(pods):
        yield pod(number, node=names[number % nodes] if nodes else "", managed_fields=managed_fields)


def write_list(stream: BinaryIO, items: Iterator[Json], *, indent: int | None = None) -> None:
    """Return a ``v1 List`` as printed by kubectl, with sorted keys, so that the kind comes after the items."""
    stream.write(b'{"apiVersion": "v1", "items": [')
    for index, item in enumerate(items):
        stream.write(b",\n" if index else b"\n")
        separators = (",", ": ") if indent else (",", ":")
        stream.write(json.dumps(item, indent=indent, separators=separators, sort_keys=True).encode())
    stream.write(b'\n], "kind": "List", "metadata": {"resourceVersion": ""}}\n')
