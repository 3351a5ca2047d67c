import pytest

from gpuscaler.clouds.azure.templates.tags import decoded_key, decoded_tags, encoded_key, tag_hints
from gpuscaler.model.taints import Taint

TEMPLATE = "k8s.io_cluster-autoscaler_node-template"


@pytest.mark.parametrize(
    ("key", "decoded"),
    [
        ("k8s.io_cluster-autoscaler_enabled", "k8s.io/cluster-autoscaler/enabled"),
        (f"{TEMPLATE}_label_team.io_name~2of", "k8s.io/cluster-autoscaler/node-template/label/team.io/name_of"),
        ("gpuscaler.io_cluster", "gpuscaler.io/cluster"),
        ("K8s.io_Cluster-Autoscaler_enabled", "k8s.io/cluster-autoscaler/enabled"),
    ],
)
def test_keys_of_autoscalers_are_decoded(key: str, decoded: str) -> None:
    assert decoded_key(key) == decoded


def test_all_other_keys_stay_as_they_are() -> None:
    assert decoded_tags({"my_team": "a_b"}) == {"my_team": "a_b"}


@pytest.mark.parametrize("key", ["gpuscaler.io/cluster", "k8s.io/cluster-autoscaler/node-template/label/a_b/c"])
def test_a_key_that_is_encoded_is_decoded_to_itself(key: str) -> None:
    assert decoded_key(encoded_key(key)) == key


def test_labels_taints_and_resources_are_read_from_tags() -> None:
    hints = tag_hints({f"{TEMPLATE}_label_sku": "gpu", f"{TEMPLATE}_taint_sku": "gpu:NoSchedule", f"{TEMPLATE}_resources_cpu": "4"})

    assert (hints.labels, hints.taints, hints.resources) == ({"sku": "gpu"}, (Taint("sku", "gpu"),), {"cpu": 4000})


def test_a_tag_that_cannot_be_read_is_reported_as_azure_spells_it() -> None:
    (warning,) = tag_hints({f"{TEMPLATE}_taint_sku": "gpu"}).warnings

    assert warning.startswith(f"the tag '{TEMPLATE}_taint_sku' is 'gpu', expected VALUE:EFFECT")
