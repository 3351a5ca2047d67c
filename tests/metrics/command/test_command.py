"""The command line of prometheus-adapter and our own settings: what is used, ignored with a note, or refused."""

import asyncio
from pathlib import Path
from typing import Any

import pytest
import yaml
from click.testing import CliRunner, Result

from gpuscaler.cli import main
from gpuscaler.cli.metrics import metrics
from gpuscaler.metrics.api.paths import CUSTOM, EXTERNAL
from gpuscaler.metrics.command.command import (
    IGNORED,
    SWITCHES,
    FlagError,
    Options,
    TrustFlags,
    parse_header,
    parse_header_file,
    parse_seconds,
    split_values,
    without_ignored,
)
from gpuscaler.metrics.command.rules import RulesFile
from gpuscaler.metrics.command.settings import MetricsSettings, parse
from gpuscaler.metrics.rules.reading import RuleSet
from gpuscaler.model.reading.errors import SettingsError

#: The container in the deployment manifest of prometheus-adapter v0.12.
SHIPPED = [
    "--cert-dir=/var/run/serving-cert",
    "--config=/etc/adapter/config.yaml",
    "--metrics-relist-interval=1m",
    "--prometheus-url=https://prometheus.monitoring.svc:9090/",
    "--secure-port=6443",
    "--tls-cipher-suites=TLS_ECDHE_ECDSA_WITH_AES_128_GCM_SHA256,TLS_ECDHE_RSA_WITH_AES_128_GCM_SHA256",
]
#: All flags of prometheus-adapter v0.12: its own, and those of k8s.io/apiserver, k8s.io/component-base and klog.
EVERY = """
add_dir_header alsologtostderr audit-log-batch-buffer-size audit-log-batch-max-size audit-log-batch-max-wait
audit-log-batch-throttle-burst audit-log-batch-throttle-enable audit-log-batch-throttle-qps audit-log-compress audit-log-format
audit-log-maxage audit-log-maxbackup audit-log-maxsize audit-log-mode audit-log-path audit-log-truncate-enabled
audit-log-truncate-max-batch-size audit-log-truncate-max-event-size audit-log-version audit-policy-file audit-webhook-batch-buffer-size
audit-webhook-batch-initial-backoff audit-webhook-batch-max-size audit-webhook-batch-max-wait audit-webhook-batch-throttle-burst
audit-webhook-batch-throttle-enable audit-webhook-batch-throttle-qps audit-webhook-config-file audit-webhook-initial-backoff
audit-webhook-mode audit-webhook-truncate-enabled audit-webhook-truncate-max-batch-size audit-webhook-truncate-max-event-size
audit-webhook-version authentication-kubeconfig authentication-skip-lookup authentication-token-webhook-cache-ttl
authentication-tolerate-lookup-failure authorization-always-allow-paths authorization-kubeconfig
authorization-webhook-cache-authorized-ttl authorization-webhook-cache-unauthorized-ttl bind-address cert-dir client-burst client-ca-file
client-qps config contention-profiling debug-socket-path disable-http2 discovery-interval enable-priority-and-fairness
http2-max-streams-per-connection lister-kubeconfig log-flush-frequency log_backtrace_at log_dir log_file log_file_max_size logtostderr
metrics-max-age metrics-relist-interval one_output permit-address-sharing permit-port-sharing profiling prometheus-auth-config
prometheus-auth-incluster prometheus-ca-file prometheus-client-tls-cert-file prometheus-client-tls-key-file prometheus-header
prometheus-token-file prometheus-url prometheus-verb requestheader-allowed-names requestheader-client-ca-file
requestheader-extra-headers-prefix requestheader-group-headers requestheader-username-headers secure-port skip_headers skip_log_headers
stderrthreshold tls-cert-file tls-cipher-suites tls-min-version tls-private-key-file tls-sni-cert-key v vmodule
""".split()
#: The command line of the write-up on GPU metrics for the HorizontalPodAutoscaler from 2018.
RUN_FILE = Path(__file__).parents[3] / "docs" / "examples" / "run.yaml"
OF_OLD = ["--logtostderr=true", "--v=10", "--metrics-relist-interval", "1m", "--config", "config.yaml", "--prometheus-url", "http://p:9090"]


def run_command(*words: str) -> Result:
    return CliRunner().invoke(main, ["metrics", *words], env={"HOME": "/nowhere", "KUBECONFIG": None, "KUBERNETES_SERVICE_HOST": None})


def test_flags_without_effect_are_removed_with_a_note_and_all_others_are_kept() -> None:
    left, notes = without_ignored([*SHIPPED, *OF_OLD, "-v", "4", "--disable-http2", "--add_dir_header"], frozenset())

    assert left == [word for word in [*SHIPPED, *OF_OLD] if not word.startswith(("--tls-cipher-suites", "--logtostderr", "--v"))]
    assert sorted(note.split(" ")[0] for note in notes) == [
        "--add-dir-header",
        "--disable-http2",
        "--logtostderr",
        "--tls-cipher-suites",
        "--v",
    ]
    assert "log lines are JSON" in next(note for note in notes if note.startswith("--v "))


def test_every_flag_of_prometheus_adapter_is_accepted() -> None:
    here = {option.removeprefix("--") for parameter in metrics.params for option in parameter.opts} | set(IGNORED)
    assert not [flag for flag in EVERY if flag.replace("_", "-") not in here]


def test_a_boolean_flag_does_not_consume_the_next_argument() -> None:
    assert without_ignored(["--logtostderr", "--config=x"], frozenset())[0] == ["--config=x"]
    assert without_ignored(["--stderrthreshold", "2", "--config=x"], frozenset())[0] == ["--config=x"]
    assert set(IGNORED) >= SWITCHES


def test_boolean_flags_accept_go_syntax() -> None:
    switches = frozenset({"prometheus-auth-incluster"})
    assert without_ignored(["--prometheus-auth-incluster=true"], switches)[0] == ["--prometheus-auth-incluster"]
    assert without_ignored(["--prometheus-auth-incluster=false"], switches)[0] == []
    with pytest.raises(FlagError, match="expected true or false"):
        without_ignored(["--prometheus-auth-incluster=maybe"], switches)


def test_the_cache_duration_of_access_reviews_may_be_zero() -> None:
    assert parse_seconds("--authentication-token-webhook-cache-ttl", "0s", zero=True) == 0
    flags = ("authentication-token", "authorization")
    words = [
        f"--{flags[0]}-webhook-cache-ttl=0s",
        *(f"--{flags[1]}-webhook-cache-{verdict}-ttl=0" for verdict in ("authorized", "unauthorized")),
    ]
    assert "--prometheus-url: saw no URL" in run_command(*words).output


def test_values_of_flags_are_parsed_as_in_go() -> None:
    assert parse_seconds("--x", "1m30s") == 90.0
    assert parse_header("X-Scope-OrgID=a=b") == ("X-Scope-OrgID", "a=b")
    assert split_values(["a,b", " c ", ""]) == ("a", "b", "c")


@pytest.mark.parametrize("text", ["90", "0s", "-1m", "soon"])
def test_an_invalid_duration_is_refused(text: str) -> None:
    with pytest.raises(FlagError, match="--x: saw"):
        parse_seconds("--x", text)


@pytest.mark.parametrize("text", ["Authorization", "Bad Name=x", "=x", "X=a\nY: b"])
def test_an_invalid_header_is_refused_without_showing_its_value(text: str) -> None:
    with pytest.raises(FlagError, match="--prometheus-header"):
        parse_header(text)


@pytest.mark.parametrize("text", ["Authorization", "Bad Name=x", "=x", "X="])
def test_a_header_file_needs_name_and_path(text: str) -> None:
    with pytest.raises(FlagError, match="--prometheus-header-file: saw"):
        parse_header_file(text)


@pytest.mark.parametrize(
    ("options", "fragments"),
    [
        ({"prometheus_urls": ("https://me:s3cret@p",)}, ["saw a password in the URL"]),
        (
            {"prometheus_urls": ("https://p",), "prometheus_headers": (("Authorization", "s3cret"),)},
            ["--prometheus-header Authorization: saw"],
        ),
        ({"prometheus_urls": ("http://p",), "prometheus_token": Path("s3cret")}, ["saw http://p for a server that gets credentials"]),
        ({"prometheus_urls": ("http://p",), "prometheus_header_files": (("X", Path("s3cret")),)}, ["saw http://p for a server"]),
        ({"prometheus_urls": ("http://me:s3cret@p",)}, ["saw a password in the URL", "saw http://p for a server"]),
        ({"prometheus_urls": ("http://127.0.0.1:9090",), "prometheus_token": Path("s3cret")}, []),
        ({"prometheus_urls": ("http://p",), "prometheus_headers": (("X-Scope-OrgID", "ml"),)}, []),
    ],
)
def test_secrets_that_others_can_read_cause_warnings_that_do_not_contain_them(options: dict[str, Any], fragments: list[str]) -> None:
    warnings = Options(trust=TrustFlags(), **options).warnings()
    assert len(warnings) == len(fragments)
    assert all(part in text for part, text in zip(fragments, warnings, strict=True))
    assert "s3cret" not in "".join(warnings)


def test_certificate_authorities_from_flags_replace_those_of_the_config_map(tmp_path: Path) -> None:
    (tmp_path / "ca").write_text("PEM")
    assert TrustFlags().as_config_map() == {}
    assert TrustFlags(user_headers=("X-Other",)).as_config_map() == {}
    given = TrustFlags(proxy_ca=tmp_path / "ca", allowed_names=("front",)).as_config_map()
    assert given == {
        "requestheader-client-ca-file": "PEM",
        "requestheader-allowed-names": '["front"]',
        "requestheader-username-headers": '["x-remote-user"]',
        "requestheader-uid-headers": "[]",
        "requestheader-group-headers": '["x-remote-group"]',
        "requestheader-extra-headers-prefix": '["x-remote-extra-"]',
    }
    with pytest.raises(FlagError, match=r"--client-ca-file .*gone: saw No such file"):
        TrustFlags(client_ca=tmp_path / "gone").as_config_map()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--source=exporters", "--prometheus-url=http://p"], "--prometheus-url: saw it with --source exporters"),
        (["--source=exporters"], "--source exporters: saw no namespace of the exporters"),
        ([], "--prometheus-url: saw no URL"),
        (["--prometheus-url=http://p", "--prometheus-auth-incluster", "--prometheus-auth-config=x"], "saw both"),
        (["--prometheus-url=http://p", "--tls-cert-file=x"], "--tls-private-key-file: saw one of the two"),
        (["--prometheus-url=http://p"], "saw no kubeconfig"),
        (
            ["--prometheus-url=http://p", "--config=/gone.yaml"],
            "/gone.yaml: saw No such file or directory, expected a readable YAML file of rules",
        ),
        (
            ["--prometheus-url=http://p", f"--config={RUN_FILE}"],
            "run.yaml: saw none of rules, externalRules, resourceRules, expected rules in the format of prometheus-adapter",
        ),
        (["--settings=/gone.yaml"], "/gone.yaml: saw No such file or directory"),
        (["--prometheus-url=http://p", "--metrics-relist-interval=1m", "--metrics-max-age=30s"], "--metrics-max-age: saw 30 s"),
        (["--prometheus-verb=PUT"], "'PUT' is not one of 'GET', 'POST'"),
        (["--secure-port=70000"], "70000"),
        (["--prometheus-header=x"], "--prometheus-header: saw 'x'"),
        (["--prometheus-uri=x"], "--prometheus-url"),
        (["now"], "unexpected extra argument"),
    ],
)
def test_invalid_options_exit_with_status_2_and_a_reason(words: list[str], message: str) -> None:
    done = run_command(*words)

    assert done.exit_code == 2
    assert message in done.output


def test_settings_have_defaults_and_every_key_of_the_file_is_read() -> None:
    assert parse("") == MetricsSettings()
    metrics_settings = parse(
        yaml.safe_dump(
            {
                "service": {"name": "adapter", "namespace": "monitoring"},
                "apis": ["custom"],
                "exporters": {"namespace": "gpu", "selector": "app in (exporter)", "port": 9500, "interval": "2s"},
                "period": "5s",
                "stale": "1m",
                "hold": "30s",
                "timeout": "3s",
                "log": "debug",
            }
        )
    )
    assert (metrics_settings.service, metrics_settings.service_namespace, metrics_settings.apis) == (
        "adapter",
        "monitoring",
        frozenset({CUSTOM}),
    )
    assert (metrics_settings.period, metrics_settings.stale, metrics_settings.hold, metrics_settings.timeout, metrics_settings.level) == (
        5.0,
        60.0,
        30.0,
        3.0,
        "debug",
    )
    assert (metrics_settings.exporters.namespace, metrics_settings.exporters.port, metrics_settings.exporters.interval) == (
        "gpu",
        9500,
        2.0,
    )
    assert metrics_settings.exporters.selector.matches({"app": "exporter"})
    assert not metrics_settings.exporters.selector.matches({"app": "other"})
    assert parse("apis: [external, custom]").apis == {CUSTOM, EXTERNAL}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("stales: 1m", "stales"),
        ("stale: 60", "expected a duration with its unit"),
        ("{stale: 5s, period: 10s}", "`stale` (5 s) must not be less than `period` (10 s)"),
        ("apis: []", "expected custom, external or both"),
        ("apis: [resource]", "expected one of custom, external"),
        ("log: loud", "expected one of debug, info, warning, error"),
        ("service: {name: Upper}", "lower-case letters"),
        ("exporters: {selector: 'app in x'}", "unable to parse requirement"),
        ("exporters: {port: 0}", "expected a port"),
        ("period: 0s", "above 0"),
        ("[1]", "expected a mapping"),
        ("a: [", "settings:"),
    ],
)
def test_an_invalid_setting_is_named_in_the_error(text: str, message: str) -> None:
    with pytest.raises(SettingsError) as caught:
        parse(text)
    assert message in str(caught.value)


RULE = "rules: [{seriesQuery: '%s', resources: {template: <<.Resource>>}, metricsQuery: 'sum(<<.Series>>{<<.LabelMatchers>>})'}]\n"


def test_changed_rules_are_loaded_but_an_invalid_file_keeps_the_previous_rules(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULE % "a")
    file = RulesFile(path)
    assert (file.rules.series_queries, file.reload()) == (("a",), False)

    path.write_text(RULE % "b")
    assert (file.reload(), file.rules.series_queries) == (True, ("b",))

    path.write_text("rules: [")
    assert (file.reload(), file.rules.series_queries) == (False, ("b",))
    assert "the previous rules stay in use" in file.trouble

    path.unlink()
    assert not file.reload()
    assert "No such file" in file.trouble

    path.write_text(RULE % "c")
    assert (file.reload(), file.trouble, file.rules.series_queries) == (True, "", ("c",))


async def test_rules_loaded_from_a_changed_file_are_passed_to_the_source(tmp_path: Path) -> None:
    path = tmp_path / "rules.yaml"
    path.write_text(RULE % "a")
    file, used = RulesFile(path), list[RuleSet]()
    task = asyncio.create_task(file.run(used.append))
    await asyncio.sleep(20)
    path.write_text(RULE % "b")
    await asyncio.sleep(20)
    task.cancel()
    assert [rule_set.series_queries for rule_set in used] == [("b",)]


def test_the_built_in_rules_are_used_if_no_rules_file_is_given() -> None:
    file = RulesFile(None)
    assert len(file.rules.rules) > 5
    assert not file.reload()
