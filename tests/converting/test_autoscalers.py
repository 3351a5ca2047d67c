"""Autoscalers of nodes that become run files: their flags, what goes with them, and that every file is valid."""

import re
from base64 import b64encode
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from gpuscaler.converting.autoscalers.cluster_autoscaler import carried_flags
from gpuscaler.converting.autoscalers.cluster_autoscaler_flags import BOOLEANS, answered_flags
from gpuscaler.converting.folder import Conversion, convert_files
from gpuscaler.doctor.manifests.objects.autoscaler_flags import KNOWN
from gpuscaler.settings import parse_settings

Json = dict[str, Any]
DISCOVERY = "--node-group-auto-discovery=asg:tag=k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/prod"
AWS = ("--cloud-provider=aws", DISCOVERY)
#: Budgets that are defaults of Cluster Autoscaler, and all of its defaults that are settings of every pool.
AT_ONCE: Json = {"nodes": 10}
DRAINED: Json = {"nodes": 1, "reasons": ["consolidation"]}
EVERY: Json = {"name": "*", "unready_after": "20m", "budgets": [AT_ONCE, DRAINED]}
SUBSCRIPTION = "11111111-2222-3333-4444-555555555555"

#: What the examples of Cluster Autoscaler for AWS and Azure have around their Deployments.
ACCOUNT = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: cluster-autoscaler, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: cluster-autoscaler}
rules: [{apiGroups: [""], resources: [nodes], verbs: [get, list, watch, update]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: cluster-autoscaler, namespace: kube-system}
rules: [{apiGroups: [""], resources: [configmaps], verbs: [create, list, watch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: cluster-autoscaler}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-autoscaler}
subjects: [{kind: ServiceAccount, name: cluster-autoscaler, namespace: kube-system}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: cluster-autoscaler, namespace: kube-system}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: cluster-autoscaler}
subjects: [{kind: ServiceAccount, name: cluster-autoscaler, namespace: kube-system}]
"""
#: The ReplicationController of the write-up on kOps and OpenAI's autoscaler (2017).
OPENAI = """
apiVersion: v1
kind: ReplicationController
metadata: {name: autoscaler, namespace: kube-system, labels: {app: autoscaler}}
spec:
  replicas: 1
  selector: {app: autoscaler}
  template:
    metadata:
      labels: {app: autoscaler, openai/do-not-drain: "true"}
      annotations: {scheduler.alpha.kubernetes.io/affinity: '{"nodeAffinity": {}}'}
    spec:
      containers:
      - name: autoscaler
        image: quay.io/openai/kubernetes-ec2-autoscaler
        env:
        - {name: PYKUBE_KUBERNETES_SERVICE_HOST, value: 100.64.0.1}
        - {name: AWS_ACCESS_KEY_ID, valueFrom: {secretKeyRef: {name: autoscaler, key: aws-access-key-id}}}
        - {name: AWS_SECRET_ACCESS_KEY, valueFrom: {secretKeyRef: {name: autoscaler, key: aws-secret-access-key}}}
        command: [python, main.py, --regions, "ap-northeast-1,us-west-2", --cluster-name, apnortheast.k8s.example.com, -vvv,
          --type-idle-threshold, "0", --sleep, "30"]
        imagePullPolicy: Always
      restartPolicy: Always
      dnsPolicy: Default
      nodeSelector: {kubernetes.io/role: master}
---
apiVersion: v1
kind: Secret
metadata: {name: autoscaler, namespace: kube-system}
data: {aws-access-key-id: QUtJQQ==, aws-secret-access-key: c2VjcmV0}
"""
#: The Deployment of acs-engine's autoscaler, and its Secret.
ACS = f"""
apiVersion: extensions/v1beta1
kind: Deployment
metadata: {{name: autoscaler}}
spec:
  template:
    metadata: {{labels: {{app: autoscaler}}}}
    spec:
      containers:
      - name: autoscaler
        image: wbuchwalter/kubernetes-acs-engine-autoscaler:latest
        env:
        - {{name: AZURE_SP_SECRET, valueFrom: {{secretKeyRef: {{name: autoscaler, key: azure-sp-secret}}}}}}
        - {{name: SUBSCRIPTION_ID, valueFrom: {{secretKeyRef: {{name: autoscaler, key: subscription-id}}}}}}
        command: [python, main.py, --resource-group, mygroup, --acs-deployment, azuredeploy, --ignore-pools, "agentpool1,agentpool3",
          --idle-threshold, "900", --over-provision, "2", -vvv]
---
apiVersion: v1
kind: Secret
metadata: {{name: autoscaler}}
stringData: {{azure-sp-app-id: x, azure-sp-secret: topsecret, subscription-id: {SUBSCRIPTION}}}
"""


def workload(
    *flags: str, kind: str = "Deployment", image: str = "registry.k8s.io/autoscaling/cluster-autoscaler:v1.35.0", **container: Any
) -> Json:
    described = {"name": "ca", "image": image, "command": ["./cluster-autoscaler", *flags], **container}
    labels = {"app": "cluster-autoscaler"}
    return {
        "apiVersion": "v1" if kind in ("ReplicationController", "Pod") else "apps/v1",
        "kind": kind,
        "metadata": {"name": "cluster-autoscaler", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"serviceAccountName": "cluster-autoscaler", "containers": [described]},
            },
        },
    }


def carry(*objects: Json | str, image: str = "") -> Conversion:
    """The conversion of ``objects``, in one file, whose run files are all valid."""
    text = "---\n".join(item if isinstance(item, str) else yaml.safe_dump(item) for item in objects)
    done = convert_files([("a.yaml", text)], image="ours:1", carry=True, own_image=image)
    for carried in done.carried:
        parse_settings(carried.text)
    return done


def run_file(*objects: Json | str, image: str = "") -> Json:
    """The run file of the only autoscaler among ``objects``."""
    (carried,) = carry(*objects, image=image).carried
    config: Json = yaml.safe_load(carried.text)["config"]
    return config


def notes(*objects: Json | str) -> list[str]:
    return [message.text for message in carry(*objects).messages]


def note_of(flag: str, *objects: Json | str) -> str:
    """The only note about a flag."""
    (note,) = [text for text in notes(*objects) if text.startswith((f"{flag} ", f"{flag}="))]
    return note


def remaining(done: Conversion) -> list[str]:
    return [f"{item['kind']}/{item['metadata']['name']}" for item in yaml.safe_load_all(done.stream)]


def test_groups_that_are_found_by_tags_become_the_cluster_with_its_region() -> None:
    assert run_file(workload(*AWS, env=[{"name": "AWS_REGION", "value": "eu-west-1"}])) == {
        "cloud": "aws",
        "aws": {"cluster": "prod", "regions": ["eu-west-1"]},
        "pools": [EVERY],
    }


def test_the_region_is_that_of_the_registry_if_nothing_else_names_it() -> None:
    image = "602401143452.dkr.ecr.us-west-2.amazonaws.com/cluster-autoscaler:v1"
    assert run_file(workload(*AWS, image=image))["aws"]["regions"] == ["us-west-2"]
    assert "no region is named; us-east-1 stands in its place: write the regions of the groups in aws.regions" in notes(workload(*AWS))


def test_named_groups_become_pools_with_their_limits() -> None:
    file = run_file(workload("--cloud-provider=aws", "--nodes=1:10:k8s-worker-asg-1", "--nodes", "0:3:gpu workers"))
    assert file["aws"]["groups"] == ["k8s-worker-asg-1", "gpu workers"]
    assert file["pools"][1:] == [{"name": "k8s-worker-asg-1", "min": 1, "max": 10}, {"name": "gpu-workers", "min": 0, "max": 3}]
    assert file["aws"]["cluster"] == "REPLACE-ME"


def test_everything_that_only_the_autoscaler_needs_goes_with_it() -> None:
    budget = """
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata: {name: ca, namespace: kube-system}
spec: {selector: {matchLabels: {app: cluster-autoscaler}}, maxUnavailable: 1}
"""
    priorities = "{apiVersion: v1, kind: ConfigMap, metadata: {name: cluster-autoscaler-priority-expander, namespace: kube-system}}\n"
    annotations = {"kubernetes.io/service-account.name": "cluster-autoscaler"}
    token = {"apiVersion": "v1", "kind": "Secret", "metadata": {"name": "t", "namespace": "kube-system", "annotations": annotations}}
    done = carry(ACCOUNT, workload(*AWS), budget, token, priorities)
    assert remaining(done) == ["ConfigMap/cluster-autoscaler-priority-expander"]
    left_out = [f"{message.where}: {message.text}" for message in done.messages if message.text.startswith("left out: ")]
    assert "ServiceAccount kube-system/cluster-autoscaler: left out: only the autoscaler runs as it" in left_out
    assert "Role kube-system/cluster-autoscaler: left out: it has rights of the autoscaler only" in left_out
    assert any(
        "Run kubectl delete deployment cluster-autoscaler --namespace kube-system before you install it" in note for note in left_out
    )
    assert len(left_out) == 8


def test_an_identity_of_the_cloud_and_priorities_in_another_namespace_are_reported() -> None:
    role = "metadata: {name: cluster-autoscaler, namespace: kube-system, annotations: {eks.amazonaws.com/role-arn: x}}"
    account = ACCOUNT.replace("metadata: {name: cluster-autoscaler, namespace: kube-system}", role, 1)
    priorities = "{apiVersion: v1, kind: ConfigMap, metadata: {name: cluster-autoscaler-priority-expander, namespace: scaling}}\n"
    listed = notes(account, workload(*AWS), priorities)
    assert any(
        "its identity in the cloud trusts this account only: gpuscaler's account needs an identity of its own" in note for note in listed
    )
    assert "gpuscaler reads it in kube-system only: move it there" in listed


@pytest.mark.parametrize(
    "user",
    [
        "{apiVersion: v1, kind: ServiceAccount, metadata: {name: default, namespace: N}, imagePullSecrets: [{name: shared}]}",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: N}, spec: {tls: [{secretName: shared}]}}",
        "{apiVersion: cert-manager.io/v1, kind: Certificate, metadata: {name: c, namespace: N}, spec: {secretName: shared}}",
        "{apiVersion: cert-manager.io/v1, kind: ClusterIssuer, metadata: {name: c}, spec: {acme: {privateKeySecretRef: {name: shared}}}}",
        "{apiVersion: monitoring.coreos.com/v1, kind: PodMonitor, metadata: {name: m, namespace: N}, spec: {a: {name: shared, key: p}}}",
        "{apiVersion: x.example/v1, kind: Odd, metadata: {name: o, namespace: N}, spec: {uses: [shared]}}",
        "{apiVersion: networking.k8s.io/v1, kind: Ingress, metadata: {name: i, namespace: x, annotations: {a/auth-secret: N/shared}}}",
        "{apiVersion: x.example/v1, kind: Odd, metadata: {name: o, namespace: x}, spec: {ref: {kind: Secret, name: shared, namespace: N}}}",
    ],
)
def test_a_secret_that_any_other_object_mentions_stays(user: str) -> None:
    described = workload(*AWS, envFrom=[{"secretRef": {"name": "shared"}}])
    secret = "{apiVersion: v1, kind: Secret, metadata: {name: shared, namespace: kube-system}}\n"
    assert "Secret/shared" not in remaining(carry(described, secret))
    assert "Secret/shared" in remaining(carry(described, secret, re.sub(r"\bN\b", "kube-system", user)))
    if "namespace: N" in user and "kind: Odd" not in user:
        assert "Secret/shared" not in remaining(carry(described, secret, re.sub(r"\bN\b", "elsewhere", user)))


def test_what_others_need_too_stays() -> None:
    other = workload(image="other")
    other["metadata"]["name"] = "other"
    other["spec"]["template"]["spec"]["containers"][0]["command"] = ["other"]
    assert len(remaining(carry(ACCOUNT, workload(*AWS), other))) == 6
    more = """
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: people}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-autoscaler}
subjects: [{kind: Group, name: people}]
"""
    assert remaining(carry(ACCOUNT, workload(*AWS), more)) == ["ClusterRole/cluster-autoscaler", "ClusterRoleBinding/people"]


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "ReplicaSet", "ReplicationController"])
def test_all_kinds_of_workloads_are_read(kind: str) -> None:
    assert run_file(workload(*AWS, kind=kind))["aws"]["cluster"] == "prod"


@pytest.mark.parametrize(
    "container",
    [
        {"command": ["./cluster-autoscaler"], "args": list(AWS)},
        {"command": ["/cluster-autoscaler", "-cloud-provider", "aws", DISCOVERY.replace("--", "-", 1)]},
        {"command": ["sh", "-c", f"exec ./cluster-autoscaler {AWS[0]} '{AWS[1]}' 1>>/var/log/ca.log 2>&1"], "image": "mirror/ca:1"},
        {"command": ["/bin/bash", "-ec", "cluster-autoscaler --cloud-provider=$CLOUD " + DISCOVERY.replace("prod", "${NAME}")]},
        {"args": ["--cloud_provider=$(CLOUD)", DISCOVERY.replace("prod", "$(NAME)")], "command": None},
    ],
)
def test_flags_are_read_however_the_command_is_written(container: Json) -> None:
    env = [{"name": "CLOUD", "value": "aws"}, {"name": "SHORT", "value": "prod"}, {"name": "NAME", "value": "$(SHORT)"}]
    config = run_file(workload(**{"env": env, **container}))
    assert (config["cloud"], config["aws"]["cluster"]) == ("aws", "prod")


def test_variables_of_config_maps_and_secrets_among_the_files_are_known() -> None:
    settings_map = (
        "{apiVersion: v1, kind: ConfigMap, metadata: {name: s, namespace: kube-system}, data: {cluster: prod, AWS_REGION: eu-west-1}}\n"
    )
    env = [{"name": "CLUSTER", "valueFrom": {"configMapKeyRef": {"name": "s", "key": "cluster"}}}]
    flags = ("--cloud-provider=aws", DISCOVERY.replace("prod", "$(CLUSTER)"))
    described = workload(*flags, env=env, envFrom=[{"configMapRef": {"name": "s"}}])
    assert run_file(settings_map, described)["aws"] == {"cluster": "prod", "regions": ["eu-west-1"]}


def test_a_placeholder_is_kept_where_a_person_finds_it_and_reported() -> None:
    described = workload("--cloud-provider=aws", DISCOVERY.replace("prod", "<YOUR CLUSTER NAME>"), "--max-nodes-total=$(MOST)")
    assert run_file(described)["aws"]["cluster"] == "<YOUR CLUSTER NAME>"
    assert "the name of the cluster is <YOUR CLUSTER NAME>: write the one in the tags of its groups in aws.cluster" in notes(described)
    assert "the value of --max-nodes-total=$(MOST) is filled in elsewhere, so it is not carried over" in notes(described)


@pytest.mark.parametrize(
    ("flags", "key", "value"),
    [
        (["--scale-down-unneeded-time=5m30s"], "pools", [EVERY | {"idle_after": "5m30s"}]),
        (["--scale-down-unready-time=1h"], "pools", [EVERY | {"unready_after": "1h"}]),
        (["--scale-down-unready-enabled=false"], "pools", [EVERY | {"unready_after": "0s"}]),
        (["--scale-down-unready-enabled=false", "--scale-down-unready-time=1h"], "pools", [EVERY | {"unready_after": "0s"}]),
        (["--scale-down-unready-time=1h", "--scale-down-unready-enabled=false"], "pools", [EVERY | {"unready_after": "0s"}]),
        (["--scale-down-enabled=false"], "pools", [EVERY | {"budgets": [{"nodes": 0}], "unready_after": "0s"}]),
        (["--scale-down-enabled=false", "--scale-down-enabled=true"], "pools", [EVERY]),
        (["--max-empty-bulk-delete=5"], "pools", [EVERY | {"budgets": [{"nodes": 5, "reasons": ["idle"]}, DRAINED]}]),
        (
            ["--max-scale-down-parallelism=5", "--max-drain-parallelism=3", "--max-scale-down-parallelism=20"],
            "pools",
            [EVERY | {"budgets": [DRAINED | {"nodes": 3}, {"nodes": 20}]}],
        ),
        (["--max-nodes-total=0", "--max-nodes-total=100"], "limits", {"machines": 100}),
        (["--gpu-total=nvidia-l4:0:16", "--gpu-total=nvidia-l4:0:8"], "limits", {"gpus": 8}),
        (["--max-nodes-total=80"], "limits", {"machines": 80}),
        (["--gpu-total=nvidia-tesla-a100:0:16", "--gpu-total=nvidia-l4:1:8"], "limits", {"gpus": 24}),
        (["--expendable-pods-priority-cutoff=-100"], "priority_cutoff", -100),
        (["--max-node-provision-time=20m"], "pace", {"register_timeout": "20m", "ready_timeout": "20m"}),
        (["--scan-interval=30s"], "pace", {"resync": "30s"}),
        (["--max-inactivity=5m"], "http", {"alive_within": "5m"}),
        (["--bypassed-scheduler-names=volcano"], "schedulers", ["default-scheduler", "volcano"]),
    ],
)
def test_a_flag_with_a_counterpart_becomes_a_key_of_the_run_file(flags: list[str], key: str, value: Any) -> None:
    assert run_file(workload(*AWS, *flags))[key] == value


@pytest.mark.parametrize("flag", ["--max-nodes-total=80", "--scale-down-enabled=false", "--scale-down-unready-time=1h"])
def test_what_a_flag_became_is_listed(flag: str) -> None:
    assert note_of(flag.partition("=")[0], workload(*AWS, flag)).startswith(f"{flag} became ")


def test_of_a_flag_that_is_given_twice_the_last_one_counts_and_the_other_is_named() -> None:
    described = workload(*AWS, "--max-nodes-total=100", "--max-nodes-total=0")
    assert "limits" not in run_file(described)
    assert "--max-nodes-total=100 is left out: --max-nodes-total=0 comes later, and the last one counts" in notes(described)


def test_defaults_that_gpuscaler_cannot_have_are_named() -> None:
    listed = notes(workload(*AWS))
    for flag in (
        *("enforce-node-group-min-size=false", "skip-nodes-with-custom-controller-pods=true"),
        *("skip-nodes-with-system-pods=true", "max-total-unready-percentage=45"),
    ):
        assert any(note.startswith(f"--{flag} (the default) is left out, ") for note in listed)
    stated = notes(workload(*AWS, "--enforce-node-group-min-size"))
    assert not any(note.startswith("--enforce-node-group-min-size=false") for note in stated)


def test_groups_that_would_be_one_pool_are_named_and_have_no_limits() -> None:
    flags = ("--nodes=0:3:k8s worker 1", "--nodes=1:10:k8s.worker 1", "--nodes=2:5:k8s-worker-1")
    described = workload("--cloud-provider=aws", *flags)
    file = run_file(described)
    assert file["aws"]["groups"] == ["k8s worker 1", "k8s.worker 1", "k8s-worker-1"]
    assert [pool["name"] for pool in file["pools"]] == ["*", "k8s.worker-1"]
    assert any(
        "k8s worker 1 and k8s-worker-1 would both be the pool k8s-worker-1: their min and max are left out" in note
        for note in notes(described)
    )


def test_startup_taints_are_expected_with_each_effect_that_keeps_pods_off() -> None:
    (every,) = run_file(workload(*AWS, "--startup-taint=example.org/driver", "--ignore-taint=example.org/driver"))["pools"]
    assert every["startup_taints"] == ["example.org/driver:NoSchedule", "example.org/driver:NoExecute"]


@pytest.mark.parametrize(
    ("flag", "why"),
    [
        ("--scale-down-utilization-threshold=0.7", "not needed: a node is removed where its pods fit elsewhere for less"),
        ("--expander=least-waste", "gpuscaler decides this itself: the mix of machines is solved for the least cost"),
        ("--expander=priority,price", "the ConfigMap cluster-autoscaler-priority-expander in kube-system is read as it is"),
        ("--balance-similar-node-groups", "not needed: groups that differ by zone only"),
        ("--skip-nodes-with-local-storage=false", "not supported: pods with local storage keep their nodes"),
        ("--skip-nodes-with-system-pods=true", "gpuscaler decides this itself: pods in kube-system without a PodDisruptionBudget keep"),
        ("--max-total-unready-percentage=10", "not supported: while more than 3 nodes and more than 45 % of all nodes are not Ready"),
        ("--cores-total=0:320", "not supported: no limit counts cores or memory"),
        ("--max-graceful-termination-sec=600", "gpuscaler decides this itself: pods get their own terminationGracePeriodSeconds"),
        ("--cordon-node-before-terminating=true", "the same without a setting: a node is closed before its machine ends"),
        ("--aws-use-static-instance-list=false", "not needed: instance types are read from the account"),
        ("--leader-elect=false", "gpuscaler decides this itself: its Lease is called gpuscaler"),
        ("--new-pod-scale-up-delay=30s", "not supported: a delay is set on the pod itself"),
        ("--max-nodes-total=0", "the same without a setting: 0 is no limit"),
        ("--no-such-flag=1", "not supported: gpuscaler does not know this flag of Cluster Autoscaler"),
    ],
)
def test_a_flag_without_a_counterpart_is_listed_with_what_happens_instead(flag: str, why: str) -> None:
    name, _, value = flag.partition("=")
    assert note_of(name, workload(*AWS, flag)).startswith(f"{name}={value or 'true'} is left out, ")
    assert why in note_of(name, workload(*AWS, flag))


@pytest.mark.parametrize(
    ("flag", "expected"),
    [
        ("--scale-down-unneeded-time=10", "expected a duration such as 90s, 10m or 1h30m"),
        ("--scale-down-unready-time=0s", "expected more than 0 s, since unready_after: 0s is never; without the key it is 45m"),
        ("--max-nodes-total=-1", "expected a whole number"),
        ("--max-nodes-total=99999999999999999999", "expected a whole number"),
        ("--nodes=5:1:a", "expected MIN:MAX:NAME with a MIN that is not above MAX"),
        ("--gpu-total=8", "expected TYPE:MIN:MAX"),
        ("--scan-interval=1ms", "expected at least 0.01 s"),
        ("--node-group-auto-discovery=mig:namePrefix=a", "expected asg:tag=…"),
        ("--startup-taint=a b", "expected the key of a taint"),
    ],
)
def test_a_value_that_cannot_be_used_is_not_carried_over(flag: str, expected: str) -> None:
    assert f"{flag} is not carried over: {expected}" in notes(workload(*AWS, flag))


def test_every_flag_of_cluster_autoscaler_is_carried_over_or_has_an_answer() -> None:
    unknown = KNOWN - carried_flags() - answered_flags()
    assert not unknown


@pytest.mark.parametrize("value", ["", "=1", "=10m", "=true", "=false", "=1:2:x", "=a,b", "=$(X)"])
def test_each_flag_is_listed_once_whatever_its_value_is(value: str) -> None:
    flags = [f"--{name}{value}" for name in sorted(KNOWN - {"cloud-provider"})]
    listed = notes(workload("--cloud-provider=aws", *flags))
    for name in sorted(KNOWN):
        mentioned = [note for note in listed if f"--{name}=" in note or f"--{name}," in note]
        assert mentioned, name


def test_flags_without_a_value_take_none_from_the_next_word() -> None:
    assert BOOLEANS <= KNOWN
    config = run_file(workload("--cloud-provider", "aws", "--leader-elect", "--scale-down-enabled", "--max-nodes-total", "7", DISCOVERY))
    assert config["limits"] == {"machines": 7}


@pytest.mark.parametrize(
    ("tags", "found", "check"),
    [
        ("k8s.io/cluster-autoscaler/enabled", {"cluster": "REPLACE-ME"}, "groups are found by two tags"),
        (
            "kubernetes.io/cluster/prod=owned,team=ml",
            {"cluster": "prod", "tags": {"kubernetes.io/cluster/prod": "owned", "team": "ml"}},
            "",
        ),
        ("team=ml,gpu", {"cluster": "REPLACE-ME", "tags": {"team": "ml"}}, "aws.tags has no entry for gpu, since it needs a value"),
        (
            "k8s.io/cluster-autoscaler/enabled,k8s.io/cluster-autoscaler/prod,team=ml",
            {"cluster": "prod"},
            "groups without team are adopted, too, if they have the two tags of the cluster: list them in aws.exclude",
        ),
    ],
)
def test_other_tags_are_carried_over_as_far_as_possible(tags: str, found: Json, check: str) -> None:
    described = workload(
        "--cloud-provider=aws", f"--node-group-auto-discovery=asg:tag={tags}", env=[{"name": "AWS_REGION", "value": "us-east-1"}]
    )
    aws = run_file(described)["aws"]
    assert {key: aws[key] for key in aws if key != "regions"} == found
    assert not check or any(check in note for note in notes(described))


@pytest.mark.parametrize("provider", ["--cloud-provider=gce", "--cloud-provider=clusterapi", "--v=4"])
def test_an_autoscaler_of_another_cloud_passes_through(provider: str) -> None:
    done = carry(ACCOUNT, workload(provider))
    assert done.carried == ()
    assert len(remaining(done)) == 6
    assert any("and gpuscaler drives aws and azure: passed through, no run file is written" in str(message) for message in done.messages)


def azure_secret(**values: str) -> Json:
    data = {key: b64encode(f"{value}\n".encode()).decode() for key, value in values.items()}
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "metadata": {"name": "cluster-autoscaler-azure", "namespace": "kube-system"},
        "data": data,
    }


def azure_env(**keys: str) -> list[Json]:
    return [{"name": name, "valueFrom": {"secretKeyRef": {"name": "cluster-autoscaler-azure", "key": key}}} for name, key in keys.items()]


ENV = azure_env(ARM_SUBSCRIPTION_ID="SubscriptionID", ARM_RESOURCE_GROUP="ResourceGroup", ARM_CLIENT_SECRET="ClientSecret")


def test_scale_sets_of_azure_are_found_in_their_resource_group() -> None:
    described = workload("--cloud-provider=azure", "--nodes=1:10:vmss1", "--nodes=0:5:vmss2", env=ENV)
    secret = azure_secret(SubscriptionID=SUBSCRIPTION, ResourceGroup="gpu-nodes", ClientSecret="topsecret")
    assert run_file(secret, described) == {
        "cloud": "azure",
        "azure": {"subscriptions": [{"id": SUBSCRIPTION, "resource_groups": ["gpu-nodes"], "pools": ["vmss1", "vmss2"]}]},
        "pools": [EVERY, {"name": "vmss1", "min": 1, "max": 10}, {"name": "vmss2", "min": 0, "max": 5}],
    }
    done = carry(secret, described)
    assert remaining(done) == []
    assert any("gpuscaler generate azure-role writes its roles" in str(message) for message in done.messages)
    assert "topsecret" not in done.carried[0].text + "".join(map(str, done.messages))


def test_the_cluster_of_aks_is_read_from_the_resource_group_of_its_nodes() -> None:
    secret = azure_secret(SubscriptionID=SUBSCRIPTION, ResourceGroup="MC_prod-rg_prod_westeurope")
    config = run_file(secret, workload("--cloud-provider=azure", "--nodes=0:8:aks-gpu-12345678-vmss", env=ENV))
    (subscription,) = config["azure"]["subscriptions"]
    assert subscription == {"id": SUBSCRIPTION, "cluster": {"name": "prod", "resource_group": "prod-rg"}, "pools": ["gpu"]}
    assert config["pools"][1] == {"name": "gpu", "min": 0, "max": 8}


def test_a_cluster_whose_name_does_not_follow_from_its_group_is_not_guessed() -> None:
    secret = azure_secret(SubscriptionID=SUBSCRIPTION, ResourceGroup="MC_my_prod_rg_my_prod_westeurope")
    described = workload("--cloud-provider=azure", "--nodes=0:8:gpu", env=ENV)
    assert "cluster" not in run_file(secret, described)["azure"]["subscriptions"][0]
    named = workload("--cloud-provider=azure", "--nodes=0:8:gpu", "--cluster-name=my_prod", env=ENV)
    assert run_file(secret, named)["azure"]["subscriptions"][0]["cluster"] == {"name": "my_prod", "resource_group": "my_prod_rg"}


@pytest.mark.parametrize("place", ["data", "stringData"])
@pytest.mark.parametrize(
    "env",
    [
        {"env": [{"name": "P", "valueFrom": {"secretKeyRef": {"name": "cluster-autoscaler-azure", "key": "password"}}}]},
        {"envFrom": [{"secretRef": {"name": "cluster-autoscaler-azure"}, "prefix": "P"}], "env": [{"name": "P", "value": "$(Ppassword)"}]},
        {"env": [{"name": "ARM_RESOURCE_GROUP", "valueFrom": {"secretKeyRef": {"name": "cluster-autoscaler-azure", "key": "password"}}}]},
    ],
)
@pytest.mark.parametrize(
    "command",
    [
        ["cluster-autoscaler", "--cloud-provider=azure", "--x=$(P)", "--nodes=0:1:$(P)"],
        ["sh", "-c", "cluster-autoscaler --cloud-provider=azure --x=$P"],
    ],
)
def test_what_a_secret_has_is_never_shown(env: Json, command: list[str], place: str) -> None:
    secret = azure_secret(password="hunter2") if place == "data" else {**azure_secret(), "stringData": {"password": "hunter2"}}
    done = carry(secret, workload(command=command, **env))
    said = "".join(item.text for item in done.carried) + "".join(map(str, done.messages))
    assert "--x=$" in said
    assert "hunter2" not in said


@pytest.mark.parametrize(
    ("flag", "shown"),
    [
        ("--slack-hook=hunter2", "--slack-hook=…"),
        ("--service_principal_secret=hun$ter2", "--service-principal-secret=…"),
        ("--client-private-key=<hunter2>", "--client-private-key=…"),
        ("--prometheus=https://me:hunter2@host", "--prometheus=…"),
        ("--x=$(API_TOKEN)", "--x=$(API_TOKEN)"),
        ("--keyed=yes", "--keyed=yes"),
    ],
)
def test_values_of_flags_that_open_something_are_not_shown(flag: str, shown: str) -> None:
    done = carry(workload("--cloud-provider=aws", flag, env=[{"name": "API_TOKEN", "value": "hunter2"}]))
    said = "".join(item.text for item in done.carried) + "".join(map(str, done.messages))
    assert f"{shown} is left out" in said
    assert "hunter2" not in said


def test_placeholders_stand_for_what_no_file_says_about_azure() -> None:
    described = workload("--cloud-provider=azure", "--node-group-auto-discovery=label:cluster-autoscaler-name=prod,min=1,max=20", env=ENV)
    config = run_file(azure_secret(SubscriptionID="<base64>"), described)
    assert config["azure"]["subscriptions"] == [
        {"id": "00000000-0000-0000-0000-000000000000", "resource_groups": ["REPLACE-ME"], "tags": {"cluster-autoscaler-name": "prod"}}
    ]
    assert config["pools"] == [EVERY | {"min": 1, "max": 20}]
    assert any(note.startswith("no subscription is named") for note in notes(described))


def test_the_autoscaler_of_openai_becomes_a_run_file_for_its_cluster_and_regions() -> None:
    done = carry(OPENAI)
    (carried,) = done.carried
    assert yaml.safe_load(carried.text) == {
        "config": {
            "cloud": "aws",
            "aws": {"cluster": "apnortheast.k8s.example.com", "regions": ["ap-northeast-1", "us-west-2"]},
            "pace": {"register_timeout": "25m"},
            "pools": [{"name": "*", "idle_after": "1h"}],
        },
        "controller": {"nodeSelector": {"kubernetes.io/role": "master"}},
    }
    assert remaining(done) == []
    listed = [f"{message.where}: {message.text}" for message in done.messages]
    start = "Secret kube-system/autoscaler: left out: gpuscaler has the identity of its ServiceAccount instead of static keys: "
    assert f"{start}gpuscaler generate iam writes its policy, attach it by Pod Identity or IRSA; then delete the access key" in listed
    assert any("--sleep=30 is left out, gpuscaler decides this itself" in note for note in listed)
    assert any("--type-idle-threshold=0 is left out, the same without a setting" in note for note in listed)
    assert any("affinity is left out: the chart keeps gpuscaler off the machines of its own pools" in note for note in listed)


def test_all_flags_of_openai_with_a_counterpart_are_carried_over() -> None:
    flags = [
        "--idle-threshold",
        "600",
        "--instance-init-time=900",
        "--max-scale-in-fraction=0.2",
        "--no-scale",
        "--dry-run",
        "--type-idle-threshold=9",
    ]
    command = ["python3", "main.py", "--cluster-name=a", "--aws-regions=us-east-1", *flags, "--slack-hook=https://hooks.example/x"]
    (carried,) = carry(workload(image="mirror/scaler:1", command=command)).carried
    values = yaml.safe_load(carried.text)
    assert values["config"]["pools"] == [{"name": "*", "idle_after": "600s", "budgets": [{"nodes": "20%"}]}]
    assert values["config"]["pace"] == {"register_timeout": "900s"}
    assert values["config"]["limits"] == {"machines_per_minute": 0}
    assert values["controller"] == {"dryRun": True}


def test_defaults_of_the_newest_version_of_openais_autoscaler_are_written_or_named() -> None:
    described = workload(image="mirror/scaler:1", command=["python", "main.py", "--cluster-name=a", "--aws-regions=us-east-1"])
    assert run_file(described)["pools"] == [{"name": "*", "idle_after": "3300s", "budgets": [{"nodes": "10%"}]}]
    listed = notes(described)
    for default in ("over-provision=5", "type-idle-threshold=604800"):
        assert any(note.startswith(f"--{default} (the default) is left out, not supported: ") for note in listed)


def test_the_autoscaler_of_acs_engine_becomes_a_run_file_for_its_resource_group() -> None:
    done = carry(ACS)
    assert run_file(ACS) == {
        "cloud": "azure",
        "azure": {"subscriptions": [{"id": SUBSCRIPTION, "resource_groups": ["mygroup"], "exclude": ["agentpool1", "agentpool3"]}]},
        "pace": {"register_timeout": "25m"},
        "pools": [{"name": "*", "idle_after": "900s", "min": 1}],
    }
    listed = "".join(map(str, done.messages))
    assert remaining(done) == []
    assert "topsecret" not in listed + done.carried[0].text
    assert "--over-provision=2 is left out, not supported: no machines are bought beyond those that pods need" in listed
    assert "--spare-agents, which is not set, became min: 1 of every pool, its default" in listed
    assert "pools of acs-engine in availability sets are not scaled" in listed


def test_a_stated_image_and_tolerations_go_into_the_values_of_the_chart() -> None:
    described = workload(*AWS)
    described["spec"]["template"]["spec"]["tolerations"] = [{"key": "critical", "operator": "Exists"}]
    (carried,) = carry(described, image="registry.example:5000/platform/gpuscaler:2@sha256:0").carried
    values = yaml.safe_load(carried.text)
    assert values["image"] == {"repository": "registry.example:5000/platform/gpuscaler", "tag": "2", "digest": "sha256:0"}
    assert values["controller"]["tolerations"] == [{"key": "critical", "operator": "Exists"}]


def test_without_a_place_for_run_files_an_autoscaler_passes_through() -> None:
    done = convert_files([("a.yaml", yaml.safe_dump(workload(*AWS)))], image="ours:1")
    assert remaining(done) == ["Deployment/cluster-autoscaler"]
    (message,) = done.messages
    assert message.text == "it runs Cluster Autoscaler: --output or --run-file writes the run file that does the same, and leaves it out"


VALUES = """
autoDiscovery: {clusterName: prod}
awsRegion: eu-west-1
autoscalingGroups: [{name: big, maxSize: 4, minSize: 0}]
extraArgs: {scale-down-unneeded-time: 3m, balance-similar-node-groups: true, startup-taint: [a/b, c/d], v: null}
nodeSelector: {team: ops}
"""


def test_values_of_the_chart_of_cluster_autoscaler_become_a_run_file() -> None:
    done = carry(VALUES, "{apiVersion: v1, kind: ConfigMap, metadata: {name: keep}}\n")
    values = yaml.safe_load(done.carried[0].text)
    assert values["config"]["aws"] == {"cluster": "prod", "regions": ["eu-west-1"], "groups": ["big"]}
    every, big = values["config"]["pools"]
    assert (every["idle_after"], len(every["startup_taints"]), big) == ("3m", 4, {"name": "big", "min": 0, "max": 4})
    assert values["controller"]["nodeSelector"] == {"team": "ops"}
    assert remaining(done) == ["ConfigMap/keep"]
    first = str(done.messages[0])
    assert first.startswith(
        "a.yaml:1: Chart cluster-autoscaler: left out: Cluster Autoscaler must not run beside gpuscaler. Run helm uninstall"
    )
    assert not any("no apiVersion and kind" in str(message) for message in done.messages)


PRIORITIZED = """
autoDiscovery: {clusterName: prod}
extraArgs: {expander: "priority,least-waste", startup-taint_1: a/b, startup-taint_2: c/d, max-nodes-total_2: 7, max-nodes-total_1: 5}
"""


@pytest.mark.parametrize("stated", ["{10: ['.*'], 50: ['.*spot.*']}", "\"10: ['.*']\\n50: ['.*spot.*']\""])
def test_priorities_in_values_of_the_chart_become_the_config_map_that_is_read(stated: str) -> None:
    done = carry(f"{PRIORITIZED}expanderPriorities: {stated}\n")
    config = yaml.safe_load(done.carried[0].text)["config"]
    (item,) = yaml.safe_load_all(done.stream)
    assert item["metadata"] == {"name": "cluster-autoscaler-priority-expander", "namespace": "kube-system"}
    assert yaml.safe_load(item["data"]["priorities"]) == {10: [".*"], 50: [".*spot.*"]}
    assert any("apply it after helm uninstall, which deletes the one of the release" in str(message) for message in done.messages)
    # What follows an underscore only makes keys differ, and the chart sorts them.
    assert (len(config["pools"][0]["startup_taints"]), config["limits"]) == (4, {"machines": 7})


@pytest.mark.parametrize("values", [PRIORITIZED, VALUES + "expanderPriorities: {10: ['.*']}\n"])
def test_without_priorities_or_their_expander_the_chart_makes_no_config_map(values: str) -> None:
    assert carry(values).stream == ""
    said = any("expanderPriorities is left out: the chart makes nothing of it" in note for note in notes(values))
    assert said == ("expanderPriorities" in values)


@pytest.mark.parametrize(
    "installer",
    [
        "{kind: HelmRelease, spec: {chart: {spec: {chart: cluster-autoscaler}}}}",
        "{kind: HelmRelease, spec: {chartRef: {kind: OCIRepository, name: cluster-autoscaler-aws}}}",
        "{kind: HelmChart, spec: {chart: autoscaler/cluster-autoscaler}}",
        "{kind: HelmChart, spec: {chart: 'oci://registry.example/charts/cluster-autoscaler:9.1'}}",
        "{kind: Application, spec: {sources: [{repoURL: x, chart: other}, {repoURL: x, chart: cluster-autoscaler}]}}",
        "{kind: ApplicationSet, spec: {template: {spec: {source: {path: apps/cluster-autoscaler/}}}}}",
    ],
)
def test_an_autoscaler_that_another_tool_installs_is_reported_since_it_goes_on_running(installer: str) -> None:
    described = yaml.safe_load(installer) | {"apiVersion": "example.org/v1", "metadata": {"name": "x"}}
    assert any(
        "it installs Cluster Autoscaler, and passes through: Cluster Autoscaler goes on running" in note for note in notes(described)
    )
    described["spec"] = {"chart": "cluster-proportional-autoscaler", "values": {"chart": "cluster-autoscaler"}}
    assert not any("it installs" in note for note in notes(described))


def test_variables_that_nothing_reads_are_named_without_their_values() -> None:
    names = ("AWS_REGION", "CLUSTER", "ARM_VMSS_CACHE_TTL", "AWS_MAX_ATTEMPTS")
    described = workload("--cloud-provider=aws", "--cluster-name=$(CLUSTER)", env=[{"name": name, "value": "31337"} for name in names])
    expected = "the environment variables ARM_VMSS_CACHE_TTL, AWS_MAX_ATTEMPTS are left out: the chart does not set them for gpuscaler"
    assert expected in notes(described)


def test_values_of_the_chart_for_azure_name_the_cluster() -> None:
    values = f"""
cloudProvider: azure
azureSubscriptionID: {SUBSCRIPTION}
azureResourceGroup: prod-rg
azureNodeResourceGroup: MC_prod-rg_prod_westeurope
azureClusterName: prod
azureClientSecret: topsecret
autoscalingGroups: [{{name: gpu, maxSize: 4, minSize: 1}}]
"""
    done = carry(values)
    (subscription,) = yaml.safe_load(done.carried[0].text)["config"]["azure"]["subscriptions"]
    assert subscription == {"id": SUBSCRIPTION, "cluster": {"name": "prod", "resource_group": "prod-rg"}, "pools": ["gpu"]}
    assert "topsecret" not in done.carried[0].text + "".join(map(str, done.messages))


@pytest.mark.parametrize(
    "text", ["replicaCount: 2\n", "{autoDiscovery: {}, extraArgs: [1]}\n", "autoDiscovery: prod\n", "[autoDiscovery]\n"]
)
def test_other_values_are_no_autoscaler(text: str) -> None:
    assert carry(text, ACCOUNT).carried == ()


def test_a_list_loses_only_the_autoscaler() -> None:
    kept = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "keep"}}
    done = carry({"apiVersion": "v1", "kind": "List", "items": [workload(*AWS), kept]})
    assert remaining(done) == ["ConfigMap/keep"]


def test_a_hundred_thousand_arguments_are_read() -> None:
    done = carry(workload(*AWS, args=[f"--nodes=0:1:group-{number}" for number in range(5000)] + ["--x"] * 100_000))
    assert len(yaml.safe_load(done.carried[0].text)["config"]["aws"]["groups"]) == 5000


_VALUES = st.text(max_size=12) | st.sampled_from(
    ["10m", "-1", "0:5:a", "1e9", "true", "asg:tag=a=b,c", "label:tag=x=,min=9,max=1", "nan", "$(A)", "\n"]
)
_WORDS = st.tuples(st.sampled_from(sorted(KNOWN)), _VALUES).map(lambda pair: f"--{pair[0]}={pair[1]}") | st.text(max_size=8)
_OLD = st.sampled_from(
    ["resource-group", "regions", "cluster-name", "idle-threshold", "spare-agents", "max-scale-in-fraction", "ignore-pools"]
)
_OLD_WORDS = st.tuples(_OLD, _VALUES).map(lambda pair: f"--{pair[0]}={pair[1]}")


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(["aws", "azure"]),
    st.lists(_WORDS, max_size=6),
    st.dictionaries(st.sampled_from(["AWS_REGION", "ARM_RESOURCE_GROUP"]), _VALUES),
)
def test_a_run_file_is_valid_whatever_the_flags_are(cloud: str, words: list[str], variables: dict[str, str]) -> None:
    env = [{"name": name, "value": value} for name, value in variables.items()]
    assert carry(workload(f"--cloud-provider={cloud}", *(word for word in words if "cloud-provider" not in word), env=env)).carried


@settings(max_examples=150, deadline=None)
@given(st.sampled_from(["openai/kubernetes-ec2-autoscaler", "x/kubernetes-acs-engine-autoscaler"]), st.lists(_OLD_WORDS, max_size=5))
def test_a_run_file_of_an_ancestor_is_valid_whatever_the_flags_are(image: str, words: list[str]) -> None:
    assert carry(workload(image=image, command=["python", "main.py", *words])).carried


@pytest.mark.parametrize("flag", ["apikey", "dsn", "pwd", "db-pass", "connection-string"])
def test_flags_whose_names_say_that_they_hold_a_key_are_shown_without_it(flag: str) -> None:
    done = carry(workload(command=["cluster-autoscaler", "--cloud-provider=azure", f"--{flag}=hunter2"]))
    said = "".join(item.text for item in done.carried) + "".join(map(str, done.messages))
    assert f"--{flag}=…" in said
    assert "hunter2" not in said


@pytest.mark.parametrize("key", ["a..b/x", "a.-b/x", "a" * 300 + "/x"])
def test_keys_of_startup_taints_that_kubernetes_refuses_are_not_carried(key: str) -> None:
    done = carry(workload(command=["cluster-autoscaler", "--cloud-provider=azure", f"--startup-taint={key}"]))
    assert all(key not in str(yaml.safe_load(item.text)) for item in done.carried)
