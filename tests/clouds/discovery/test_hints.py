import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpuscaler.clouds.discovery.hints import LABEL, OPTION, PREFIX, RESOURCE, TAINT, hints_of
from gpuscaler.model.taints import Taint


def test_labels_taints_resources_and_options_are_read_as_cluster_autoscaler_documents_them() -> None:
    hints = hints_of(
        {
            f"{LABEL}nvidia.com/gpu": "true",
            f"{LABEL}team": "",
            f"{TAINT}nvidia.com/gpu": "true:NoSchedule",
            f"{TAINT}dedicated": ":NoExecute",
            f"{RESOURCE}nvidia.com/gpu": "4",
            f"{RESOURCE}memory": "28Gi",
            f"{RESOURCE}cpu": "7910m",
            f"{OPTION}scaledownunneededtime": "15m",
            "Name": "gpu",
        }
    )

    assert hints.labels == {"nvidia.com/gpu": "true", "team": ""}
    assert set(hints.taints) == {Taint("nvidia.com/gpu", "true", "NoSchedule"), Taint("dedicated", "", "NoExecute")}
    assert hints.resources == {"nvidia.com/gpu": 4, "memory": 28 * 2**30, "cpu": 7910}
    assert hints.idle_after == 900
    assert hints.warnings == ()


def test_openais_labels_are_read_but_node_template_labels_take_precedence() -> None:
    hints = hints_of({"kube/gpu": "true", "kube/team": "a", f"{LABEL}team": "b"})

    assert hints.labels == {"gpu": "true", "team": "b"}
    assert hints.warnings == (f"the tags {LABEL}team and kube/team differ; the first one is used",)


def test_a_published_taint_tag_that_cluster_autoscaler_ignores_silently_is_reported() -> None:
    hints = hints_of({f"{TAINT}dedicated": "nvidia.com/gpu=true"})

    assert hints.taints == ()
    assert hints.warnings[0].startswith(f"the tag '{TAINT}dedicated'") or TAINT in hints.warnings[0]
    assert "'nvidia.com/gpu=true', expected VALUE:EFFECT such as true:NoSchedule" in hints.warnings[0]


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        (f"{LABEL}a b", "c", "the key of a label"),
        (f"{LABEL}kubernetes.io/hostname", "c", "the key of a label"),
        (f"{LABEL}team", "two words", "the value of a label"),
        (f"{TAINT}a", "true:NoScheduling", "one of NoSchedule"),
        (f"{TAINT}", "true:NoSchedule", "the key of a taint"),
        (f"{RESOURCE}gpu", "1", "domain/name behind the prefix"),
        (f"{RESOURCE}nvidia.com/gpu", "many", "a quantity"),
        (f"{RESOURCE}nvidia.com/gpu", "-1", "not negative"),
        (f"{RESOURCE}nvidia.com/gpu", "0.5", "not negative"),
        (f"{RESOURCE}memory", "9E9E", "a quantity"),
        (f"{OPTION}scaledownunneededtime", "10 minutes", "a duration such as 10m"),
        (f"{OPTION}scaledownunneededtime", "-10m", "a duration such as 10m"),
        (f"{OPTION}scaledownutilizationthreshold", "0.5", "no counterpart"),
        (f"{OPTION}sclaedown", "1", "an option such as"),
        (f"{PREFIX}lables/team", "a", "label/, taint/"),
        ("kube/", "a", "the key of a label"),
    ],
)
def test_a_malformed_tag_is_reported_and_ignored_and_the_others_are_used(key: str, value: str, says: str) -> None:
    hints = hints_of({key: value, f"{LABEL}team": "ml"} if key != f"{LABEL}team" else {key: value, f"{LABEL}other": "ml"})

    (warning,) = hints.warnings
    assert says in warning
    assert list(hints.labels.values()) == ["ml"]
    assert (hints.taints, hints.resources, hints.idle_after) == ((), {}, None)


@given(
    st.dictionaries(
        st.sampled_from([LABEL, TAINT, RESOURCE, OPTION, PREFIX, "kube/", ""]).flatmap(lambda p: st.text().map(lambda t: p + t)), st.text()
    )
)
def test_arbitrary_tags_never_raise_an_error(tags: dict[str, str]) -> None:
    hints = hints_of(tags)

    assert all(len(warning) < 600 for warning in hints.warnings)


def test_cluster_autoscalers_tag_determines_when_unready_nodes_of_a_pool_are_removed() -> None:
    hints = hints_of({f"{OPTION}scaledownunreadytime": "20m", f"{OPTION}scaledownunneededtime": "5m"})

    assert (hints.unready_after, hints.idle_after, hints.warnings) == (1200.0, 300.0, ())
    assert "expected a duration such as 10m" in hints_of({f"{OPTION}scaledownunreadytime": "soon"}).warnings[0]
    at_once = hints_of({f"{OPTION}scaledownunreadytime": "0s", f"{OPTION}scaledownunneededtime": "0s"})
    assert (at_once.unready_after, at_once.idle_after, len(at_once.warnings)) == (None, 0.0, 1)
    assert "expected a duration above 0, such as 20m; it is ignored" in at_once.warnings[0]
