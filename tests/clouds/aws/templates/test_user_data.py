"""The kubelet settings from user data, in each format that images of EKS read."""

from pathlib import Path

import pytest
from tests.clouds.aws.user_data import encoded, node_config

from gpuscaler.clouds.aws.templates.launches import launch_of
from gpuscaler.clouds.aws.templates.user_data import UserDataError, kubelet_of
from gpuscaler.model.taints import Taint

ARRIVING = Taint("gpuscaler.io/arriving")
NODEADM = """apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  kubelet:
    config:
      maxPods: 110
      registerWithTaints:
        - {key: gpuscaler.io/arriving, effect: NoSchedule}
        - {key: nvidia.com/gpu, value: "true", effect: NoSchedule}
    flags:
      - --node-labels=team=red,stage=test
"""
BOOTSTRAP = """#!/bin/bash
set -e  # as the image asks
/etc/eks/bootstrap.sh prod \\
  --kubelet-extra-args '--node-labels=team=red --register-with-taints=gpuscaler.io/arriving=:NoSchedule,nvidia.com/gpu=true:NoSchedule'
"""
BOTTLEROCKET = """[settings.kubernetes]
cluster-name = "prod"
max-pods = 42
[settings.kubernetes.node-labels]
team = "red"
[settings.kubernetes.node-taints]
"gpuscaler.io/arriving" = ":NoSchedule"
"nvidia.com/gpu" = ["true:NoSchedule"]
"""
MULTIPART = f"""MIME-Version: 1.0
Content-Type: multipart/mixed; boundary="BOUNDARY"

--BOUNDARY
Content-Type: application/node.eks.aws

{NODEADM}
--BOUNDARY
Content-Type: text/x-shellscript; charset="us-ascii"

#!/bin/bash
echo "it's a node"
--BOUNDARY--
"""


@pytest.mark.parametrize("text", [NODEADM, BOOTSTRAP, BOTTLEROCKET, MULTIPART], ids=["nodeadm", "script", "bottlerocket", "mime"])
def test_labels_and_taints_are_read_from_each_format_of_user_data(text: str) -> None:
    kubelet = kubelet_of(encoded(text))

    assert kubelet.labels["team"] == "red"
    assert kubelet.taints == (ARRIVING, Taint("nvidia.com/gpu", "true"))


@pytest.mark.parametrize(("text", "pods"), [(NODEADM, 110), (BOTTLEROCKET, 42), ("kubelet --max-pods 20", 20), (BOOTSTRAP, 0)])
def test_the_pod_limit_is_read_from_user_data(text: str, pods: int) -> None:
    assert kubelet_of(encoded(text)).max_pods == pods


def test_a_later_taints_flag_replaces_an_earlier_one_and_label_flags_are_merged() -> None:
    first = ("--node-labels=eks.amazonaws.com/nodegroup=gpu", "--register-with-taints=nvidia.com/gpu=true:NoSchedule")

    kubelet = kubelet_of(encoded("kubelet --node-labels=team=red --register-with-taints=gpuscaler.io/arriving=:NoSchedule"), first=first)

    assert kubelet.taints == (ARRIVING,)
    assert kubelet.labels == {"eks.amazonaws.com/nodegroup": "gpu", "team": "red"}


def test_the_taints_flag_overrides_taints_in_the_config_file() -> None:
    assert kubelet_of(encoded(NODEADM), first=["--register-with-taints=dedicated=gpu:NoSchedule"]).taints == (Taint("dedicated", "gpu"),)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("kubelet --register-with-taints=dedicated=nvidia.com/gpu=true", "invalid taint"),
        ("kubelet --register-with-taints=dedicated=gpu:Never", "effect 'Never'"),
        ("kubelet --node-labels=node-role.kubernetes.io/gpu=", "unknown 'kubernetes.io' or 'k8s.io' labels"),
        ("kubelet --node-labels=gpu", "expected key=value"),
    ],
)
def test_invalid_user_data_keeps_the_kubelet_from_starting(text: str, words: str) -> None:
    with pytest.raises(UserDataError, match=words):
        kubelet_of(encoded(text))


def test_user_data_that_is_not_base64_text_is_reported_as_unreadable() -> None:
    with pytest.raises(UserDataError, match="base64"):
        kubelet_of("#!/bin/bash")


def test_the_user_data_that_tests_generate_matches_the_tags() -> None:
    prefix = "k8s.io/cluster-autoscaler/node-template"
    tags = {
        f"{prefix}/label/team": "red",
        f"{prefix}/taint/nvidia.com/gpu": "true:NoSchedule",
        f"{prefix}/taint/dedicated": "nvidia.com/gpu=true",
    }

    kubelet = kubelet_of(encoded(node_config(tags)))

    assert (kubelet.labels, kubelet.taints) == ({"team": "red"}, (Taint("nvidia.com/gpu", "true"), ARRIVING))


def test_an_instance_without_user_data_registers_without_labels_and_taints() -> None:
    kubelet = kubelet_of("")

    assert (kubelet.labels, kubelet.taints, kubelet.max_pods) == ({}, (), 0)


def test_the_user_data_on_the_page_about_the_simulated_account_is_read() -> None:
    page = (Path(__file__).parents[4] / "docs" / "how-to" / "aws-simulated.md").read_text(encoding="utf-8")
    (line,) = [splitline for splitline in page.splitlines() if splitline.startswith("user_data=")]
    script = line.partition("printf '")[2].partition("' |")[0].replace("\\n", "\n")

    assert kubelet_of(encoded(script)).taints == (ARRIVING,)


RAID0 = """apiVersion: node.eks.aws/v1alpha1
kind: NodeConfig
spec:
  instance:
    localStorage:
      strategy: RAID0
  kubelet:
    config:
      maxPods: 110
"""
COMMANDS = """[settings.bootstrap-commands.k8s-ephemeral-storage]
commands = [
  ["apiclient", "ephemeral-storage", "init"],
  ["apiclient", "ephemeral-storage", "bind", "--dirs", "/var/lib/containerd", "/var/lib/kubelet", "/var/log/pods"],
]
"""


@pytest.mark.parametrize(
    ("text", "local_disks", "pods"),
    [
        (RAID0, True, 110),
        ("#!/bin/bash\n/etc/eks/bootstrap.sh prod --local-disks raid0 --kubelet-extra-args '--max-pods=58'\n", True, 58),
        (COMMANDS, True, 0),
        (NODEADM, False, 110),
        (BOTTLEROCKET, False, 42),
        (RAID0.replace("RAID0", "Mount"), False, 110),
    ],
    ids=["nodeadm", "bootstrap.sh", "Bottlerocket", "no local disks", "Bottlerocket without", "mounted one by one"],
)
def test_launch_templates_determine_the_disk_of_pods_and_the_pod_limit(text: str, local_disks: bool, pods: int) -> None:
    launch = launch_of({"UserData": encoded(text)})

    assert (launch.local_disks, launch.pods) == (local_disks, pods)
