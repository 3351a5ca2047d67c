"""Exec plugins as real programs: their input, how often they run, and the errors when they fail."""

import asyncio
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import pytest
import trustme
from tests.kube.servers import ok, served, server_context

from gpuscaler.kube.access import Access
from gpuscaler.kube.client import Client
from gpuscaler.kube.credentials import RequestCredentials
from gpuscaler.kube.errors import CredentialsError, Unreachable
from gpuscaler.kube.exec_plugin import ExecPlugin, PluginCommand, redacted
from gpuscaler.kube.http import HttpTransport
from gpuscaler.kube.resources import NODES
from gpuscaler.kube.tls import Tls

pytestmark = pytest.mark.looptime(False)  # programs take real time

V1 = "client.authentication.k8s.io/v1"
BETA = "client.authentication.k8s.io/v1beta1"
SECRET = "s3cr3tTOKENthatMustNotBeSeen42"


def credential(version: str = V1, **status: Any) -> str:
    return msgspec.json.encode({"apiVersion": version, "kind": "ExecCredential", "status": status}).decode()


def plugin(folder: Path, script: str, *, version: str = V1, pause: float = 0.0, time_limit: float = 30.0, **options: Any) -> ExecPlugin:
    """A plugin whose program is the shell script; each run adds a line to ``runs``."""
    (folder / "login").write_text(f'#!/bin/sh\necho run >> "{folder}/runs"\n{script}\n')
    (folder / "login").chmod(0o755)
    command = PluginCommand("user 'u' of /k", version, "./login", folder, **options)
    return ExecPlugin(command, {"PATH": "/usr/bin:/bin", "FROM": "outside"}, pause=pause, time_limit=time_limit)


def printing(text: str) -> str:
    return f"cat <<'END'\n{text}\nEND"


def runs(folder: Path) -> int:
    file = folder / "runs"
    return len(file.read_text().splitlines()) if file.exists() else 0


def process_of(file: Path) -> Path:
    return Path("/proc") / file.read_text().strip()


def stamp(seconds: float) -> str:
    return datetime.fromtimestamp(time.time() + seconds, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def transport_to(url: str, ca: trustme.CA, credentials: ExecPlugin) -> HttpTransport:
    return HttpTransport(Access(url, "the test", Tls(authority=ca.cert_pem.bytes()), credentials))


async def failure(exec_plugin: ExecPlugin) -> str:
    with pytest.raises(CredentialsError) as raised:
        await exec_plugin.current()
    assert SECRET not in str(raised.value)
    return str(raised.value)


@pytest.mark.parametrize("version", [V1, BETA])
async def test_the_token_of_an_exec_plugin_is_kept_until_it_expires(tmp_path: Path, version: str) -> None:
    exec_plugin = plugin(tmp_path, printing(credential(version, token="abc", expirationTimestamp=stamp(3600))), version=version)
    for _ in range(3):
        assert (await exec_plugin.current()).headers == {"authorization": "Bearer abc"}
    assert runs(tmp_path) == 1
    exec_plugin.now = lambda: time.time() + 3601
    await exec_plugin.current()
    assert runs(tmp_path) == 2


async def test_the_token_of_an_exec_plugin_without_expiry_is_kept(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, printing(credential(token="abc")))
    exec_plugin.now = lambda: 1e12
    await exec_plugin.current()
    await exec_plugin.current()
    assert runs(tmp_path) == 1


async def test_the_certificate_of_an_exec_plugin_is_presented(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, printing(credential(clientCertificateData="CERT", clientKeyData="KEY")))
    presented = await exec_plugin.current()
    assert presented.certificate is not None
    assert (presented.certificate.chain, presented.certificate.key, presented.headers) == (b"CERT", b"KEY", {})
    assert "KEY" not in repr(presented) + repr(presented.certificate)


async def test_a_plugin_gets_the_cluster_information_and_its_environment(tmp_path: Path) -> None:
    script = (
        f'echo "$KUBERNETES_EXEC_INFO" > "{tmp_path}/info"; echo "$FROM $ADDED $1" > "{tmp_path}/env"\n{printing(credential(token="t"))}'
    )
    options: dict[str, Any] = {
        "args": ("argument",),
        "env": {"ADDED": "inside"},
        "cluster": {"server": "https://x"},
        "mode": "Never",
        "attended": True,
    }
    await plugin(tmp_path, script, **options).current()
    assert msgspec.json.decode((tmp_path / "info").read_bytes()) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://x"}},
    }
    assert (tmp_path / "env").read_text() == "outside inside argument\n"


async def test_simultaneous_requests_run_an_exec_plugin_once(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, f"sleep 0.1\n{printing(credential(token='t'))}")
    presented = await asyncio.gather(*(exec_plugin.current() for _ in range(10)))
    assert len(set(map(id, presented))) == 1
    assert runs(tmp_path) == 1


async def test_a_slow_plugin_finishes_even_if_every_request_times_out(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, f"sleep 0.4\n{printing(credential(token='t'))}")
    tries = 0
    while tries < 600:
        tries += 1
        try:
            async with asyncio.timeout(0.05):
                await exec_plugin.current()
                break
        except TimeoutError:
            continue
    assert 1 < tries < 600
    assert runs(tmp_path) == 1


async def test_after_a_refused_credential_the_exec_plugin_runs_once_for_all_requests(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, f'sleep 0.05; n=$(wc -l < "{tmp_path}/runs"); echo \'{credential(token="tN")}\' | sed "s/tN/t$n/"')
    first = await exec_plugin.current()
    presented = await asyncio.gather(*(exec_plugin.renewed(first) for _ in range(5)))
    assert [presented.headers["authorization"] for presented in presented if presented] == ["Bearer t2"] * 5
    assert runs(tmp_path) == 2
    late = await exec_plugin.renewed(first)
    assert late is not None
    assert late.headers == {"authorization": "Bearer t2"}
    assert runs(tmp_path) == 2


async def test_repeated_refusals_do_not_run_the_exec_plugin_repeatedly(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, printing(credential(token="t")), pause=60)
    first = await exec_plugin.current()
    assert await exec_plugin.renewed(first) is None
    assert await exec_plugin.renewed(RequestCredentials()) is first
    assert runs(tmp_path) == 1


async def test_repeated_failures_do_not_run_the_exec_plugin_repeatedly(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, "exit 1", pause=60)
    assert await failure(exec_plugin) == await failure(exec_plugin)
    assert runs(tmp_path) == 1


async def test_a_failure_quotes_the_plugins_message_without_its_keys(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, f"echo 'ExpiredToken: run aws sso login; key was {SECRET}' >&2; exit 255")
    assert await failure(exec_plugin) == (
        "user 'u' of /k: exec plugin './login': exited with 255, expected 0: "
        '"ExpiredToken: run aws sso login; key was …"; run it yourself to see what it needs'
    )


async def test_an_exec_plugin_is_used_again_once_it_stops_failing(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, f'test -e "{tmp_path}/fixed" || exit 3\n{printing(credential(token="t"))}')
    assert "exited with 3" in await failure(exec_plugin)
    (tmp_path / "fixed").touch()
    assert (await exec_plugin.current()).headers == {"authorization": "Bearer t"}


async def test_a_missing_program_is_reported_with_its_install_hint(tmp_path: Path) -> None:
    command = PluginCommand("user 'u' of /k", V1, "kubelogin-none", tmp_path, hint="Install it\n  with krew")
    message = await failure(ExecPlugin(command, {"PATH": "/usr/bin"}))
    assert message.endswith("saw no such program on the PATH, expected an executable; Install it with krew")
    local = await failure(ExecPlugin(PluginCommand("user 'u' of /k", V1, "./none", tmp_path), {}))
    assert f"saw no such program in {tmp_path}, expected an executable; install it or correct the kubeconfig" in local


async def test_a_program_that_cannot_start_is_reported(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, "")
    (tmp_path / "login").write_text("#!/no/such/shell\n")
    assert "saw No such file or directory, expected an executable" in await failure(exec_plugin)


async def test_a_program_that_never_exits_is_killed(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, f'echo $$ > "{tmp_path}/pid"; exec sleep 60', time_limit=0.4)
    assert "saw it running after 0.4 s" in await failure(exec_plugin)
    # If the machine is so busy that the shell did not start within that time, there is no process to check.
    assert not (tmp_path / "pid").exists() or not process_of(tmp_path / "pid").exists()


async def test_an_interactive_plugin_is_refused_without_a_terminal(tmp_path: Path) -> None:
    exec_plugin = plugin(tmp_path, printing(credential(token="t")), mode="Always")
    assert "saw the interactiveMode Always and no terminal, expected a user to answer it" in await failure(exec_plugin)
    assert runs(tmp_path) == 0


ATTENDED = [("IfAvailable", True, True), ("IfAvailable", False, False), ("Never", True, False)]


@pytest.mark.parametrize(("mode", "attended", "expected"), ATTENDED)
def test_a_plugin_may_prompt_only_if_a_user_is_present(tmp_path: Path, mode: str, attended: bool, expected: bool) -> None:
    assert PluginCommand("u", V1, "x", tmp_path, mode=mode, attended=attended).interactive is expected


PRINTED = {
    "nothing": ("", "printed no ExecCredential (it is not valid JSON)"),
    "no JSON": (f"token: {SECRET}", "printed no ExecCredential (it is not valid JSON)"),
    "another kind": ('{"apiVersion": "v1", "kind": "Secret"}', "printed the kind 'Secret' of 'v1', expected ExecCredential of"),
    "another version": (credential(BETA, token=SECRET), f"printed the kind 'ExecCredential' of '{BETA}', expected ExecCredential of {V1}"),
    "no status": (f'{{"apiVersion": "{V1}", "kind": "ExecCredential"}}', "printed neither a token nor both of"),
    "half a certificate": (credential(clientCertificateData="x"), "printed neither a token nor both of clientCertificateData"),
    "no time": (credential(token=SECRET, expirationTimestamp="soon"), "its expirationTimestamp is not a time"),
    "a broken token": (credential(token=f"{SECRET}\n{SECRET}"), "saw a token with spaces, line breaks"),
    "a number": (f'{{"apiVersion": "{V1}", "kind": "ExecCredential", "status": {{"token": 5}}}}', "printed no ExecCredential"),
}


@pytest.mark.parametrize("name", PRINTED)
async def test_output_that_is_not_a_credential_is_reported_without_quoting_it(tmp_path: Path, name: str) -> None:
    printed, expected = PRINTED[name]
    assert expected in await failure(plugin(tmp_path, printing(printed)))


async def test_a_request_presents_the_plugins_credentials(tmp_path: Path) -> None:
    ca = trustme.CA()
    exec_plugin = plugin(tmp_path, printing(credential(token=SECRET)))
    async with served(ok, server_context(ca)) as (url, seen), transport_to(url, ca, exec_plugin) as transport:
        await Client(transport).get(NODES, "n")
    assert seen.tokens == [f"Bearer {SECRET}"]


async def test_a_request_without_credentials_is_not_sent(tmp_path: Path) -> None:
    ca = trustme.CA()
    async with served(ok, server_context(ca)) as (url, seen), transport_to(url, ca, plugin(tmp_path, "exit 1")) as transport:
        with pytest.raises(Unreachable, match="exited with 1"):
            await Client(transport).create(NODES, {})
    assert seen.requests == []


async def test_an_unusable_issued_certificate_is_reported(tmp_path: Path) -> None:
    ca = trustme.CA()
    exec_plugin = plugin(tmp_path, printing(credential(clientCertificateData="x", clientKeyData=SECRET)))
    async with transport_to("https://127.0.0.1:1", ca, exec_plugin) as transport:
        with pytest.raises(CredentialsError, match="saw a client certificate and key that cannot be used") as raised:
            await Client(transport).create(NODES, {})
    assert SECRET not in str(raised.value)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("plain words\n and  spaces", "plain words and spaces"),
        ("/usr/local/google-cloud-sdk/bin/gke-gcloud-auth-plugin", "/usr/local/google-cloud-sdk/bin/gke-gcloud-auth-plugin"),
        ("arn:aws:iam::123456789012:role/admin", "arn:aws:iam::123456789012:role/admin"),
        ("eyJhbGciOiJSUzI1NiIsImtpZCI6.eyJpc3MiOiJodHRwczovL2sifQ0.AbCdEf0123456789AbCdEf0123", "….….…"),
        ("key=0123456789abcdef0123456789abcdef01", "…"),
        ("x" * 1000, "x" * 300),
    ],
)
def test_text_that_looks_like_a_key_is_removed_from_plugin_errors(text: str, expected: str) -> None:
    assert redacted(text) == expected
