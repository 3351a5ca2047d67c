"""Whole files: JSON Lists of any size, typed Lists, JSON lines, YAML documents, gzip, and their errors."""

import gzip
import io
import json
import tracemalloc
from collections.abc import Callable
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.model import realistic
from tests.soaking import examples

from gpuscaler.model.aside import Skipped
from gpuscaler.model.cluster import Cluster
from gpuscaler.model.decoding import InputError, Interner, read_items
from gpuscaler.model.decoding.text.windows import CHUNK, Window
from gpuscaler.model.pods import Pod
from gpuscaler.model.workloads import PodGroup

Json = dict[str, Any]


def read(data: bytes) -> list[Any]:
    return list(read_items(io.BytesIO(data), Interner(), file="cluster.json"))


def names(data: bytes) -> list[str]:
    """Return the names of objects that were read, and ``!reason`` for skipped ones."""
    return [f"!{item.object}: {item.reason}" if isinstance(item, Skipped) else item.name for item in read(data)]


def zipped(data: bytes) -> bytes:
    """Compress data without a timestamp."""
    return gzip.compress(data, mtime=0)


def pod(name: str, **spec: Any) -> Json:
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "n"}, "spec": spec}


def listed(*items: Any, **top: Any) -> Json:
    return {"apiVersion": "v1", "items": list(items), "kind": "List", "metadata": {"resourceVersion": ""}, **top}


ABC = [pod("a"), pod("b"), pod("c")]


@pytest.mark.parametrize(
    "data",
    [
        json.dumps(listed(*ABC)).encode(),
        json.dumps(listed(*ABC), indent=4).encode(),
        json.dumps(listed(*ABC)).encode() + b"\n\n",
        b"\xef\xbb\xbf " + json.dumps(listed(*ABC)).encode(),
        zipped(json.dumps(listed(*ABC)).encode()),
        zipped(json.dumps(pod("a")).encode()) + zipped(json.dumps(listed(*ABC[1:])).encode()),
        json.dumps(ABC).encode(),
        b"\n".join(json.dumps(item).encode() for item in ABC),
        b"".join(json.dumps(item, indent=1).encode() for item in ABC),
        json.dumps(pod("a")).encode() + json.dumps(listed(*ABC[1:])).encode(),
        yaml.safe_dump_all(ABC).encode(),
        yaml.safe_dump(listed(*ABC)).encode(),
        b"# a comment\n---\n" + yaml.safe_dump_all([ABC[0], None, listed(*ABC[1:])]).encode() + b"\n---\n",
        yaml.safe_dump(ABC).encode(),
        zipped(yaml.safe_dump_all(ABC).encode()),
    ],
)
def test_every_kubectl_output_format_gives_the_same_objects(data: bytes) -> None:
    assert names(data) == ["a", "b", "c"]


@pytest.mark.parametrize(
    "order", [("kind", "apiVersion", "metadata", "items"), ("apiVersion", "items", "kind", "metadata"), ("items", "kind")]
)
@pytest.mark.parametrize("count", [3, 6_000])
def test_items_get_the_kind_of_a_typed_list_regardless_of_key_order(order: tuple[str, ...], count: int) -> None:
    items = [{"metadata": {"name": f"p{index}", "annotations": {"example.com/pad": "x" * 200}}} for index in range(count)]
    fields = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
    data = json.dumps({key: fields[key] for key in order}).encode()
    assert (len(data) > CHUNK) == (count > 3)
    decoded = read(data)
    assert [item.key for item in decoded] == [f"default/p{index}" for index in range(count)]


def test_items_get_the_version_of_a_typed_list_of_an_old_group() -> None:
    budgets = {
        "kind": "PodDisruptionBudgetList",
        "apiVersion": "policy/v1beta1",
        "items": [{"metadata": {"name": "b"}, "spec": {"selector": {}}}],
    }
    (decoded,) = read(json.dumps(budgets).encode())
    assert decoded.selector is None
    (decoded,) = read(yaml.safe_dump(budgets).encode())
    assert decoded.selector is None


def test_empty_lists_contain_no_objects() -> None:
    for data in (b"[]", b"[ ]", json.dumps(listed()).encode(), b"items: []\nkind: List\n"):
        assert read(data) == []
    assert read(json.dumps(listed(items=None)).encode()) == []


@pytest.mark.parametrize("data", [b"", b" \n", zipped(b""), b"\xef\xbb\xbf"], ids=["empty", "blank", "zipped", "byte-order mark"])
def test_an_empty_input_is_an_error_because_a_failed_kubectl_leaves_one(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^cluster\.json: saw an empty input, expected Kubernetes objects"):
        read(data)


@pytest.mark.parametrize("data", [b"# none\n", b"---\n---\n", b"null\n"], ids=["comments", "documents", "null"])
def test_an_input_of_empty_documents_is_an_error(data: bytes) -> None:
    with pytest.raises(InputError, match=r"^cluster\.json: saw no object, expected Kubernetes objects; for an empty cluster"):
        read(data)
    assert read(data + b"---\nkind: List\nitems: []\n") == []


@pytest.mark.parametrize("write", [json.dumps, yaml.safe_dump], ids=["JSON", "YAML"])
def test_nested_lists_are_expanded_into_their_items(write: Callable[[Any], str]) -> None:
    typed = {"kind": "PodList", "apiVersion": "v1", "items": [{"metadata": {"name": "c"}}]}
    several = [listed(pod("a")), pod("b"), listed(typed, listed(pod("d")))]
    assert names(write(several).encode()) == ["a", "b", "c", "d"]
    assert names(write(listed(*several)).encode()) == ["a", "b", "c", "d"]
    (odd,) = names(write([listed(5)]).encode())
    assert "[0]" in odd
    assert "items[0]" in odd


def test_objects_of_unsupported_kinds_are_ignored() -> None:
    other = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "x"}, "data": {"items": "[]"}}
    assert names(json.dumps(listed(pod("a"), other, pod("b"))).encode()) == ["a", "b"]
    assert names(json.dumps(other).encode()) == []


def test_an_object_with_several_items_fields_yields_all_their_items() -> None:
    groups = [{"name": "a", "policy": {"gang": {"minCount": 2}}}, {"name": "b"}]
    workload = {"apiVersion": "scheduling.k8s.io/v1alpha1", "kind": "Workload", "metadata": {"name": "w"}, "spec": {"podGroups": groups}}
    expected = [PodGroup("workload", "default", "w/a", 2), PodGroup("workload", "default", "w/b", 0)]
    assert read(json.dumps(listed(workload)).encode()) == expected
    assert read(yaml.safe_dump(workload).encode()) == expected


@pytest.mark.parametrize("dump", [lambda raw: json.dumps(raw).encode(), lambda raw: yaml.safe_dump(raw).encode()])
def test_a_malformed_object_in_a_list_never_affects_the_others(dump: Any) -> None:
    odd = pod("odd", containers=[{"resources": {"requests": {"cpu": "1xyz"}}}])
    decoded = names(dump(listed(pod("a"), odd, {"kind": "Pod"}, 5, None, {"metadata": {"name": "x"}}, pod("b"))))
    assert [name for name in decoded if not name.startswith("!")] == ["a", "b"]
    broken = "\n".join(name for name in decoded if name.startswith("!"))
    assert "!Pod n/odd: spec.containers[0].resources.requests.cpu: saw '1xyz'" in broken
    assert "!Pod: metadata.name: saw nothing" in broken
    assert "items[3]" in broken
    assert "items[4]" in broken
    assert "!object x: kind: saw nothing" in broken
    assert broken.count("!") == 5


def test_only_the_item_that_is_not_json_is_skipped() -> None:
    data = b'{"kind": "List", "items": [{"kind": "Pod", "spec": nonsense}, {"kind": "Pod", "metadata": {"name": "b"}}]}'
    broken, decoded = names(data)
    assert broken.startswith("!cluster.json items[0]: ")
    assert decoded == "b"


def test_only_the_item_nested_too_deeply_is_skipped() -> None:
    deep = b'{"kind": "Pod", "spec": ' + b"[" * 50_000 + b'"]"' + b"]" * 50_000 + b"}"
    data = b'{"kind": "List", "items": [' + deep + b', {"kind": "Pod", "metadata": {"name": "b"}}]}'
    broken, decoded = names(data)
    assert broken.startswith("!")
    assert decoded == "b"


def test_a_huge_item_and_a_huge_object_are_read() -> None:
    huge = pod("huge")
    huge["metadata"]["annotations"] = {"example.com/blob": "x" * 5_000_000 + '\\"{[' * 10_000}
    assert names(json.dumps(listed(huge, pod("b"))).encode()) == ["huge", "b"]
    assert names(json.dumps(huge).encode() + json.dumps(pod("b")).encode()) == ["huge", "b"]


class Endless(io.RawIOBase):
    """A List with so many equal items that it would not fit into memory."""

    def __init__(self, item: bytes, count: int) -> None:
        self._parts = iter([b'{"apiVersion": "v1", "items": [' + item, *[b"," + item] * (count - 1), b'], "kind": "List"}'])
        self._left = b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while len(self._left) < len(buffer) and (part := next(self._parts, b"")):
            self._left += part
        decoded, self._left = self._left[: len(buffer)], self._left[len(buffer) :]
        buffer[: len(decoded)] = decoded
        return len(decoded)


def test_a_list_is_read_without_keeping_it_in_memory() -> None:
    item = json.dumps(realistic.pod(1, node="node-1", managed_fields=True)).encode()
    count = 1_200
    tracemalloc.start()
    decoded = sum(isinstance(item, Pod) for item in read_items(io.BufferedReader(Endless(item, count)), Interner()))
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert decoded == count
    assert len(item) * count > 10_000_000
    assert peak < 6_000_000


def test_a_decoded_pod_takes_less_than_a_kilobyte() -> None:
    stream = io.BytesIO()
    realistic.write_list(stream, realistic.objects(1_000, 0))
    stream.seek(0)
    interner = Interner()
    tracemalloc.start()
    pods = list(read_items(stream, interner))
    held = tracemalloc.get_traced_memory()[0]
    tracemalloc.stop()
    assert len(pods) == 1_000
    assert held / len(pods) < 1_000


def test_every_pod_and_node_of_a_realistic_cluster_is_indexed() -> None:
    stream = io.BytesIO()
    realistic.write_list(stream, realistic.objects(200, 10, managed_fields=True), indent=4)
    stream.seek(0)
    cluster = Cluster.of(read_items(stream, Interner()))  # type: ignore[arg-type]  # nothing here is set aside
    assert (len(cluster.nodes), len(cluster.pods), len(cluster.unbound)) == (10, 200, 0)
    assert cluster.requested["pods"].tolist() == [20] * 10


@pytest.mark.parametrize(
    ("data", "path", "seen", "expected"),
    [
        (b'{"kind": "List", "items": [{"kind": "Pod"', "items[0]", "the end of the input", "the rest of the value"),
        (b'{"kind": "List", "items": [{"kind": "Pod"}', "items[1]", "the end of the input", "',' or ']'"),
        (b'{"kind": "List", "items": [{"kind": "Pod"} {"kind": "Pod"}]}', "items[1]", "'{'", "',' or ']'"),
        (b'{"kind": "Pod", ', "object 0", "the end of the input", "the rest of the value"),
        (b'{"kind": "Pod", "metadata": {"name": "a"}} hello', "byte 43", "'h'", "as JSON"),
        (b"kind: Pod\nmetadata: [\n", "document 0 (line 1)", "while parsing", "as YAML"),
        (b"kind: Namespace\nmetadata: {name: a}\n---\na: b: c\n", "document 1 (line 3)", "mapping values", "as YAML"),
        (b"kind: Pod\nname: \xff\n", "after line", "not UTF-8", "text"),
        (zipped(b"{}" * 1000)[:-20], "", "broken compression", "a complete gzip file"),
    ],
)
def test_an_error_that_stops_reading_a_file_names_place_and_reason(data: bytes, path: str, seen: str, expected: str) -> None:
    with pytest.raises(InputError) as caught:
        read(data)
    error = caught.value
    assert error.file == "cluster.json"
    assert path in error.path
    assert seen in error.seen
    assert expected in error.expected
    assert str(error).startswith("cluster.json: ")


def test_objects_before_a_syntax_error_are_read() -> None:
    stream = io.BytesIO(json.dumps(listed(*ABC)).encode()[:-100])
    items = read_items(stream, Interner())
    first, second = next(items), next(items)
    assert isinstance(first, Pod)
    assert isinstance(second, Pod)
    assert (first.name, second.name) == ("a", "b")
    with pytest.raises(InputError):
        next(items)


def test_yaml_values_are_interpreted_as_in_kubernetes() -> None:
    text = """
kind: Pod
metadata:
  name: p
  creationTimestamp: 2026-03-01T08:00:00Z
  labels: {at: 12:30, version: "1.10", since: 2026-03-01}
spec:
  containers:
  - resources: {requests: {cpu: 1.5, memory: 1e9, example.com/octal: 010}}
"""
    (pod,) = read(text.encode())
    assert isinstance(pod, Pod)
    assert pod.created == 1772352000.0
    assert pod.labels == {"at": "12:30", "version": "1.10", "since": "2026-03-01"}
    assert pod.spec.requests == {"cpu": 1500, "memory": 10**9, "example.com/octal": 8}


@pytest.mark.parametrize(("label", "seen"), [("on", "true"), ("no", "false"), ("1.10", "1.1"), ("5", "5"), ("0x1F", "31")])
def test_an_object_with_yaml_values_of_a_wrong_type_is_skipped(label: str, seen: str) -> None:
    text = f"kind: Pod\nmetadata:\n  name: p\n  labels:\n    fine: x\n    feature: {label}\n"
    assert names(text.encode()) == [f"!Pod p: metadata.labels.feature: saw {seen}, expected text"]


def test_a_yaml_document_with_a_duplicate_key_is_skipped() -> None:
    text = "kind: Pod\nmetadata: {name: a}\nspec:\n  priority: 1\n  priority: 2\n---\nkind: Pod\nmetadata: {name: b}\n"
    broken, decoded = names(text.encode())
    assert broken == "!cluster.json document 0 (line 1): saw the key 'priority' twice (line 5 of the document), expected each key once"
    assert decoded == "b"


def test_yaml_anchors_and_merges_work_and_their_expansion_is_limited() -> None:
    text = "x: &base {namespace: n, name: a}\nkind: Pod\nmetadata: {<<: *base, name: b}\n"
    (decoded,) = read(text.encode())
    assert decoded.key == "n/b"
    bomb = "a0: &a0 [x, x]\n" + "".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]\n" for i in range(1, 12)) + "kind: Pod\n"
    (aside,) = read(bomb.encode())
    assert "aliases" in aside.reason
    (aside,) = read(b"kind: Pod\nmetadata: &m {name: x, annotations: *m}\n")
    assert "aliases" in aside.reason


def test_documents_that_are_not_objects_are_skipped() -> None:
    assert names(b"hello") == ["!cluster.json document 0 (line 1): saw text, expected a Kubernetes object"]
    assert (
        names(b"kind: Pod\nmetadata: {name: a}\n---\n- 5\n")[1]
        == "!cluster.json document 1 (line 3)[0]: saw a number, expected a Kubernetes object"
    )


def test_reading_a_stream_leaves_it_open_and_uses_its_name() -> None:
    stream = io.BytesIO(b'{"kind": ')
    with pytest.raises(InputError, match=r"^input: "):
        list(read_items(stream, Interner()))
    assert not stream.closed


texts = st.text(max_size=6) | st.sampled_from(['"', "\\", "{", "}", "[", "]", ",", ":", " "])
jsons = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | texts,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(texts, inner, max_size=4),
    max_leaves=12,
)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(jsons, min_size=1, max_size=5), st.integers(1, 40), st.sampled_from((None, 1)))
def test_the_end_of_every_json_value_is_found_for_any_chunk_size(values: list[Any], chunk: int, indent: int | None) -> None:
    data = b"[" + b" , ".join(json.dumps(value, indent=indent).encode() for value in values) + b"]"
    window = Window(io.BytesIO(data), "f", chunk)
    window.take(b"[", "")
    decoded = []
    while True:
        decoded.append(json.loads(bytes(window.value(""))))
        if window.take(b",]", "") == b"]":
            break
    assert decoded == values
    assert window.peek() == b""
