"""The chart, rendered by the real helm."""

import functools
import json
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import yaml
from tests.charts.building import helm

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "gpuscaler"
#: Minimal values that can be installed.
SMALL: Mapping[str, Any] = {
    "config": {"region": "us-east-1", "cloud": "simulated", "pools": [{"name": "gpu", "types": ["g5.xlarge"]}]},
}

Object = dict[str, Any]


class Strict(yaml.SafeLoader):
    """Loader that rejects duplicate keys: API servers silently use the last one, or reject the object."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:  # as in the base
        keys = [key.value for key, _ in node.value]
        assert len(keys) == len(set(keys)), f"a key is there twice: {keys}{node.start_mark}"
        return super().construct_mapping(node, deep)


def merge_values(base: Mapping[str, Any], other: Mapping[str, Any]) -> Object:
    """Merge ``other`` into ``base``, as helm merges several files of values."""
    both = {
        key: merge_values(base[key], value) if isinstance(value, dict) and isinstance(base.get(key), dict) else value
        for key, value in other.items()
    }
    return {**base, **both}


def call(*words: str, values: Mapping[str, Any] | None = None) -> "subprocess.CompletedProcess[str]":
    given = ("--values", "-") if values is not None else ()
    return subprocess.run(
        (str(built()), *words, *given),
        input=yaml.safe_dump(values),
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
        env={"HOME": "/nowhere"},
    )


@functools.cache
def built() -> Path:
    return helm()


def text(values: Mapping[str, Any], *, release: str = "gpuscaler", namespace: str = "gpuscaler", hooks: bool = False) -> str:
    """Render what helm installs, optionally with ``hooks``, which it runs at other times."""
    done = call("template", release, str(CHART), "--namespace", namespace, *([] if hooks else ["--no-hooks"]), values=values)
    assert done.returncode == 0, done.stderr
    return done.stdout


def render(more: Mapping[str, Any] | None = None, *, release: str = "gpuscaler", namespace: str = "gpuscaler") -> dict[str, Object]:
    """Render the chart with :data:`SMALL` and ``more``; return the objects by ``Kind/name``."""
    return objects(text(merge_values(SMALL, more or {}), release=release, namespace=namespace))


def objects(rendered: str) -> dict[str, Object]:
    """Return objects by ``Kind/name``."""
    return {f"{obj['kind']}/{obj['metadata']['name']}": obj for obj in yaml.load_all(rendered, Strict) if obj}


def notes(more: Mapping[str, Any] | None = None, *, release: str = "gpuscaler", namespace: str = "gpuscaler") -> str:
    """Return helm's notes after an installation with :data:`SMALL` and ``more``.

    helm prints them only if a cluster answers; here a copy of the chart has the text in an object.
    """
    with TemporaryDirectory() as folder:
        chart = Path(folder) / CHART.name
        shutil.copytree(CHART, chart)
        said = (chart / "templates" / "NOTES.txt").read_text()
        (chart / "templates" / "said.yaml").write_text(
            f'{{{{ define "said" }}}}{said}{{{{ end }}}}said: {{{{ include "said" . | toJson }}}}\n'
        )
        words = ("template", release, str(chart), "--namespace", namespace, "--show-only", "templates/said.yaml")
        done = call(*words, values=merge_values(SMALL, more or {}))
    assert done.returncode == 0, done.stderr
    return str(yaml.safe_load(done.stdout)["said"])


def kubeconfig(url: str) -> str:
    """Return a kubeconfig for an API server at ``url`` that asks for no credentials."""
    cluster = {"name": "embedded", "cluster": {"server": url}}
    context = {"name": "embedded", "context": {"cluster": "embedded", "user": ""}}
    return json.dumps({"clusters": [cluster], "contexts": [context], "current-context": "embedded"})


def refusal(more: Mapping[str, Any]) -> str:
    """Return helm's message about rejected values."""
    done = call("template", "gpuscaler", str(CHART), "--namespace", "gpuscaler", values=merge_values(SMALL, more))
    assert done.returncode != 0, f"taken: {more}"
    return done.stderr
