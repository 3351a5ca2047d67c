import json
from pathlib import Path

from click.testing import CliRunner

from gpuscaler.cli.validate import validate


def test_validate_exits_0_with_one_line_for_a_valid_file(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("region: us-east-1\npools: [{name: a, types: [g5.xlarge, g6.xlarge], markets: [spot, on-demand]}]\nlimits: none")

    done = CliRunner().invoke(validate, [str(path)])

    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout == f"{path}: valid; pools: 1, offerings: 4, instance types: 2\n"


def test_validate_says_that_spot_keeps_its_own_price_where_only_an_on_demand_price_is_stated(tmp_path: Path) -> None:
    path = tmp_path / "run.yaml"
    path.write_text("region: us-east-1\ncloud: aws\naws: {cluster: a, prices: {g5.xlarge: 1, g6.xlarge: 1, g6.xlarge/spot: 0.4}}")

    done = CliRunner().invoke(validate, [str(path)])

    assert done.exit_code == 0
    assert done.stderr == (
        f"{path}: note: aws.prices has on-demand prices only of g5.xlarge: spot keeps its own price; add g5.xlarge/spot to state it\n"
    )


def test_validate_exits_2_with_every_mistake_on_stderr_for_an_invalid_file(tmp_path: Path) -> None:
    path = tmp_path / "pools.yaml"
    path.write_text("pools:\n- name: a\n  types: [g5.xlarge]\n  min: -1\n")

    done = CliRunner().invoke(validate, [str(path)])

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"{path}:3: pools[0].types[0]: saw no price for g5.xlarge and no region to look it up in; set region (or zones), or give price",
        f"{path}:4: pools[0].min: saw the number -1, expected a number of machines, 0 or more",
        f"{path}: 2 mistakes",
    ]


def test_validate_checks_the_config_section_of_chart_values_and_reports_full_paths(tmp_path: Path) -> None:
    path = tmp_path / "values.yaml"
    text = "image: {repository: registry.example/gpuscaler}\nconfig:\n  cloud: simulated\n  region: us-east-1\n  limits: none\n"
    path.write_text(f"{text}  pools: [{{name: a, types: [g5.xlarge]}}]\n")
    good = CliRunner().invoke(validate, [str(path)])
    path.write_text(f"{text}  pools: [{{name: a, types: [g5.xlarge], min: -1}}]\n")
    bad = CliRunner().invoke(validate, [str(path)])

    assert (good.exit_code, good.stdout) == (0, f"{path}: valid; pools: 1, offerings: 1, instance types: 1\n")
    assert (bad.exit_code, bad.stderr.splitlines()[0]) == (
        2,
        f"{path}:6: config.pools[0].min: saw the number -1, expected a number of machines, 0 or more",
    )


def test_validate_reports_that_a_file_contains_cluster_objects_and_no_pools(tmp_path: Path) -> None:
    path = tmp_path / "cluster.yaml"
    path.write_text("apiVersion: v1\nkind: List\nitems: []\n")

    done = CliRunner().invoke(validate, [str(path)])

    assert done.exit_code == 2
    assert done.stderr.splitlines() == [
        (
            f'{path}:1: saw a Kubernetes object (kind "List"), expected a pools file or a run file; name such a file, or a manifest that '
            "has it in a ConfigMap, under run.yaml or pools.yaml"
        ),
        f"{path}: 1 mistake",
    ]


MANIFEST = Path(__file__).parents[2] / "deploy" / "gpuscaler.yaml"


def test_validate_reads_the_run_file_in_the_manifest_that_is_applied() -> None:
    done = CliRunner().invoke(validate, [str(MANIFEST)])

    assert (done.exit_code, done.stderr) == (0, "")
    assert (
        done.stdout == f"{MANIFEST}: ConfigMap gpuscaler/gpuscaler-controller, run.yaml: valid; pools: 1, offerings: 4, instance types: 2\n"
    )


def test_validate_reports_mistakes_of_a_run_file_in_a_manifest_at_the_lines_of_the_manifest(tmp_path: Path) -> None:
    path = tmp_path / "gpuscaler.yaml"
    path.write_text(MANIFEST.read_text().replace("      max: 10\n", "      max: -1\n"))
    line = path.read_text().split("\n").index("      max: -1") + 1

    done = CliRunner().invoke(validate, [str(path)])

    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.splitlines() == [
        f"{path}:{line}: pools[0].max: saw the number -1, expected a number of machines, 0 or more",
        f"{path}: ConfigMap gpuscaler/gpuscaler-controller, run.yaml: 1 mistake",
    ]


def test_validate_checks_every_settings_file_in_the_config_maps_of_a_manifest(tmp_path: Path) -> None:
    path = tmp_path / "objects.json"
    pools = "region: us-east-1\nlimits: none\npools:\n- {name: a, types: [g5.xlarge]"
    data = {"run.yaml": f"cloud: simulated\n{pools}}}\n", "pools.yaml": f"{pools}, min: -1}}\n", "other.yaml": "pools: 7"}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "c"}, "data": data}
    path.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": [config_map]}))

    done = CliRunner().invoke(validate, [str(path)])

    assert done.exit_code == 2
    assert done.stdout == f"{path}: ConfigMap c, run.yaml: valid; pools: 1, offerings: 1, instance types: 1\n"
    assert done.stderr.splitlines() == [
        f"{path}: ConfigMap c, pools.yaml:4: pools[0].min: saw the number -1, expected a number of machines, 0 or more",
        f"{path}: ConfigMap c, pools.yaml: 1 mistake",
    ]


def test_validate_exits_2_if_the_file_is_missing(tmp_path: Path) -> None:
    done = CliRunner().invoke(validate, [str(tmp_path / "absent.yaml")])

    assert done.exit_code == 2
    assert "cannot be read" in done.stderr


def test_validate_exits_2_without_a_file_and_says_what_was_expected() -> None:
    done = CliRunner().invoke(validate, [])

    assert done.exit_code == 2
    assert "expected the path of a pools file" in done.stderr


def test_schema_prints_the_schema_as_json() -> None:
    done = CliRunner().invoke(validate, ["--schema"])

    assert done.exit_code == 0
    assert "pools" in json.loads(done.stdout)["properties"]
