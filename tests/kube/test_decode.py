"""Objects of each watched resource as records of the model."""

import json
from typing import Any

import msgspec
import pytest
from tests.kube.scripted import pod

from gpuscaler.kube.decode import ObjectDecoder, header_of, identity_of, key_of
from gpuscaler.kube.resources import CONFIG_MAPS, DEPLOYMENTS, PODS, WATCHED, WORKLOADS, Resource
from gpuscaler.model.aside import object_name
from gpuscaler.model.cluster import Cluster, Delta
from gpuscaler.model.decoding.interning import Interner


def minimal(resource: Resource, **fields: Any) -> bytes:
    namespace = {"namespace": "team"} if resource.namespaced else {}
    return json.dumps({"metadata": {"name": "one", **namespace}, **fields}).encode()


def decoder(resource: Resource) -> ObjectDecoder:
    return ObjectDecoder(resource, Interner())


@pytest.mark.parametrize("resource", [resource for resource in WATCHED if resource is not WORKLOADS], ids=lambda resource: resource.label)
def test_every_watched_object_becomes_one_record_under_the_key_of_its_name(resource: Resource) -> None:
    decoded = decoder(resource).read(minimal(resource))
    assert decoded.aside is None
    assert decoded.identity == ("team/one" if resource.namespaced else "one")
    [item] = decoded.items
    assert type(item) is decoder(resource).model
    assert decoded.keys is None
    assert key_of(item) == decoder(resource).key(decoded.identity)


@pytest.mark.parametrize("resource", WATCHED, ids=lambda resource: resource.label)
def test_deleting_an_unreadable_object_removes_the_report_about_it(resource: Resource) -> None:
    reader = decoder(resource)
    decoded = reader.read(b'{"metadata": {"labels": 7, ' + minimal(resource)[len('{"metadata": {') :])
    assert decoded.aside is not None
    cluster = Cluster().apply(Delta(), set_aside=[decoded.aside])
    assert cluster.apply(Delta(deletes=((reader.model, reader.key(decoded.identity)),))).set_aside == ()
    assert object_name(reader.model, reader.key(decoded.identity)) == decoded.aside.object


def test_a_workload_has_a_record_for_each_of_its_groups() -> None:
    groups = [{"name": "driver"}, {"name": "workers", "policy": {"gang": {"minCount": 8}}}]
    decoded = decoder(WORKLOADS).read(minimal(WORKLOADS, apiVersion="scheduling.k8s.io/v1alpha1", spec={"podGroups": groups}))
    assert decoded.keys == ("workload/team/one/driver", "workload/team/one/workers")
    assert len(decoded.items) == 2


def test_items_of_a_list_need_no_kind() -> None:
    bare = pod("a", node="n1")
    del bare["kind"], bare["apiVersion"]
    named = decoder(PODS).read(json.dumps(pod("a", node="n1")).encode())
    assert decoder(PODS).read(json.dumps(bare).encode()).items == named.items


@pytest.mark.parametrize("data", [b"", b"{", b"[]", b"null", b'"pod"', b'{"metadata":[]}', b'{"metadata":{"name":7}}', b"\xff\xfe{}"])
def test_decoding_never_raises_an_error_whatever_the_input(data: bytes) -> None:
    decoded = decoder(PODS).read(data)
    assert decoded.items == ()
    assert decoded.aside is not None
    assert decoded.identity == ""


def test_a_decoded_record_does_not_keep_its_page_in_memory() -> None:
    page = msgspec.json.decode(b'{"items":[' + json.dumps(pod("a")).encode() + b"]}", type=dict[str, list[msgspec.Raw]])
    item = decoder(PODS).read(page["items"][0]).items[0]
    assert isinstance(key_of(item), str)
    # A record that held a view of the page could not be encoded as plain JSON.
    assert msgspec.json.decode(msgspec.json.encode(item))["name"] == "a"


def test_the_header_of_an_object_is_its_name_and_version() -> None:
    header = header_of(json.dumps(pod("a", version=77)).encode())
    assert (identity_of(header), header.resource_version) == ("team/a", "77")
    assert identity_of(header_of(b'{"metadata":{"name":"n1"}}')) == "n1"


def test_a_resource_without_a_reader_in_the_model_raises_value_error() -> None:
    with pytest.raises(ValueError, match="ConfigMap of v1: the model has no reader for it"):
        decoder(CONFIG_MAPS)


def test_a_deployments_record_has_its_kind() -> None:
    assert decoder(DEPLOYMENTS).key("team/one") == "Deployment/team/one"
