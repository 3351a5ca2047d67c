"""Kubeconfigs and pods: what is found, what takes precedence, and the errors."""

import base64
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme
import yaml

from gpuscaler.kube.access import Access, from_kubeconfig
from gpuscaler.kube.credentials import FixedCredentials, RequestCredentials, TokenFile
from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.exec_plugin import ExecPlugin
from gpuscaler.kube.incluster import find_access, in_cluster

SECRET = "s3cr3t-TOKEN-that-must-not-be-seen"
CA = trustme.CA()
PEM = CA.cert_pem.bytes()
MINE = CA.issue_cert("me@example.org")


def base64_text(data: bytes) -> str:
    return base64.b64encode(data).decode()


def kubeconfig(cluster: Mapping[str, Any], user: Mapping[str, Any] | None = None, **context: str) -> dict[str, Any]:
    named = {"cluster": "c", **({"user": "u"} if user is not None else {}), **context}
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "preferences": {},
        "current-context": "here",
        "clusters": [{"name": "c", "cluster": {"server": "https://10.0.0.1:6443", **cluster}}],
        "users": [{"name": "u", "user": user}] if user is not None else None,
        "contexts": [{"name": "here", "context": named}],
    }


def write(path: Path, content: object) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else yaml.safe_dump(content))
    return path


def read(tmp_path: Path, cluster: Mapping[str, Any], user: Mapping[str, Any] | None = None, **options: Any) -> Access:
    environ = options.pop("environ", {})
    return from_kubeconfig([write(tmp_path / "config", kubeconfig(cluster, user, **options))], environ=environ)


async def presented(access: Access) -> RequestCredentials:
    return await access.credentials.current()


async def test_the_current_context_of_a_kubeconfig_is_used(tmp_path: Path) -> None:
    access = read(tmp_path, {"certificate-authority-data": base64_text(PEM)}, {"token": SECRET}, namespace="team")
    assert (access.server, access.namespace, access.proxy, access.warnings) == ("https://10.0.0.1:6443", "team", "", ())
    assert access.source == f"context 'here' of {tmp_path / 'config'}"
    assert access.tls.authorities() == PEM
    assert (await presented(access)).headers == {"authorization": f"Bearer {SECRET}"}
    assert access.compress


async def test_the_text_of_a_cluster_access_shows_no_secret(tmp_path: Path) -> None:
    user = {"token": SECRET, "client-certificate-data": base64_text(MINE.cert_chain_pems[0].bytes())}
    key = MINE.private_key_pem.bytes()
    access = read(tmp_path, {"proxy-url": "http://me:hidden-pa55@proxy:3128"}, {**user, "client-key-data": base64_text(key)})
    shown = repr(access) + str(access) + repr(await presented(access)) + repr(access.tls.own_certificate())
    for secret in (SECRET, "hidden-pa55", key.decode().splitlines()[1]):
        assert secret not in shown


async def test_file_paths_in_a_kubeconfig_are_relative_to_its_folder(tmp_path: Path) -> None:
    write(tmp_path / "pki" / "ca.crt", PEM.decode())
    write(tmp_path / "pki" / "me.crt", MINE.cert_chain_pems[0].bytes().decode())
    write(tmp_path / "pki" / "me.key", MINE.private_key_pem.bytes().decode())
    write(tmp_path / "token", "from-file\n")
    user = {"client-certificate": "pki/me.crt", "client-key": "pki/me.key", "tokenFile": "token", "token": "older"}
    access = read(tmp_path, {"certificate-authority": "pki/ca.crt"}, user)
    assert access.tls.authorities() == PEM
    assert access.tls.own_certificate() is not None
    assert isinstance(access.credentials, TokenFile)
    assert (await presented(access)).headers == {"authorization": "Bearer from-file"}


def test_embedded_data_in_a_kubeconfig_take_precedence_over_files(tmp_path: Path) -> None:
    access = read(tmp_path, {"certificate-authority-data": base64_text(PEM), "certificate-authority": "/no/such"}, {})
    assert access.tls.authorities() == PEM


async def test_a_name_and_password_become_basic_auth(tmp_path: Path) -> None:
    assert (await presented(read(tmp_path, {}, {"username": "me", "password": "pässword"}))).headers == {
        "authorization": "Basic " + base64_text("me:pässword".encode())
    }


async def test_a_context_without_a_user_is_anonymous(tmp_path: Path) -> None:
    assert (await presented(read(tmp_path, {}))).headers == {}


def test_settings_of_a_kubeconfig_cluster_entry_are_used(tmp_path: Path) -> None:
    cluster = {
        "server": "https://lb/k8s/c-1/",
        "tls-server-name": "kubernetes",
        "proxy-url": "http://proxy:3128",
        "disable-compression": True,
    }
    access = read(tmp_path, cluster, {}, environ={"HTTPS_PROXY": "http://other"})
    assert (access.server, access.tls.server_name, access.proxy, access.compress) == (
        "https://lb/k8s/c-1",
        "kubernetes",
        "http://proxy:3128",
        False,
    )


def test_insecure_access_gives_a_warning(tmp_path: Path) -> None:
    access = read(tmp_path, {"insecure-skip-tls-verify": True}, {})
    assert access.tls.insecure
    assert ["insecure-skip-tls-verify is set" in text for text in access.warnings] == [True]


async def test_credentials_are_not_sent_without_tls(tmp_path: Path) -> None:
    access = read(tmp_path, {"server": "http://10.0.0.1:8080"}, {"token": SECRET, "as": "admin"})
    assert (await presented(access)).headers == {}
    assert access.headers == ()
    assert ["has no TLS" in text for text in access.warnings] == [True]


@pytest.mark.parametrize(
    ("cluster", "expected"),
    [
        ({"server": "10.0.0.1:8080"}, "http://10.0.0.1:8080"),
        ({"server": "10.0.0.1:6443", "insecure-skip-tls-verify": True}, "https://10.0.0.1:6443"),
        ({"server": "https://[fd00::1]:6443"}, "https://[fd00::1]:6443"),
    ],
)
def test_an_abbreviated_server_address_is_completed(tmp_path: Path, cluster: dict[str, Any], expected: str) -> None:
    assert read(tmp_path, cluster).server == expected


def test_impersonation_settings_of_a_kubeconfig_become_headers(tmp_path: Path) -> None:
    user = {"as": "jane", "as-uid": "7", "as-groups": ["a", "b"], "as-user-extra": {"Acme.com/Scopes": ["x", "y"]}}
    assert read(tmp_path, {}, user).headers == (
        ("impersonate-user", "jane"),
        ("impersonate-uid", "7"),
        ("impersonate-group", "a"),
        ("impersonate-group", "b"),
        ("impersonate-extra-acme.com%2Fscopes", "x"),
        ("impersonate-extra-acme.com%2Fscopes", "y"),
    )


async def test_of_several_kubeconfigs_the_first_that_defines_an_entry_is_used(tmp_path: Path) -> None:
    write(tmp_path / "a" / "ca.crt", PEM.decode())
    first = kubeconfig({"server": "https://first", "certificate-authority": "ca.crt"}, {"token": "t1"})
    second = kubeconfig({"server": "https://second"}, {"token": "t2"})
    second["contexts"].append({"name": "there", "context": {"cluster": "other", "user": "u"}})
    second["clusters"].append({"name": "other", "cluster": {"server": "https://other"}})
    second["current-context"] = "there"
    files = [write(tmp_path / "a" / "one", {**first, "current-context": ""}), write(tmp_path / "b" / "two", second)]
    access = from_kubeconfig(files, environ={})
    assert access.server == "https://other"
    assert (await presented(access)).headers == {"authorization": "Bearer t1"}
    merged = from_kubeconfig(files, context="here", environ={})
    assert merged.server == "https://first"
    assert merged.tls.authorities() == PEM


def test_an_exec_plugin_keeps_its_settings_and_cluster_information(tmp_path: Path) -> None:
    plugin = {
        "apiVersion": "client.authentication.k8s.io/v1",
        "command": "./bin/login",
        "args": ["--token", SECRET],
        "env": [{"name": "KEY", "value": SECRET}],
        "interactiveMode": "Never",
        "provideClusterInfo": True,
        "installHint": "ask Ann",
    }
    extensions = [{"name": "client.authentication.k8s.io/exec", "extension": {"audience": "a"}}]
    access = read(tmp_path, {"certificate-authority-data": base64_text(PEM), "extensions": extensions}, {"exec": plugin})
    assert isinstance(access.credentials, ExecPlugin)
    command = access.credentials.command
    assert (command.command, command.folder, command.args, command.hint) == ("./bin/login", tmp_path, ("--token", SECRET), "ask Ann")
    assert command.cluster == {
        "server": "https://10.0.0.1:6443",
        "certificate-authority-data": base64_text(PEM),
        "config": {"audience": "a"},
    }
    assert SECRET not in repr(access)


def test_a_token_takes_precedence_over_an_exec_plugin(tmp_path: Path) -> None:
    plugin = {"apiVersion": "client.authentication.k8s.io/v1beta1", "command": "login"}
    assert isinstance(read(tmp_path, {}, {"exec": plugin, "token": "t"}).credentials, FixedCredentials)


V1 = "client.authentication.k8s.io/v1"
WRONG: dict[str, tuple[dict[str, Any], dict[str, Any], str]] = {
    "no server": ({"server": ""}, {}, "cluster 'c' of {file}: saw no server, expected a URL"),
    "an invalid server": ({"server": "ftp://x"}, {}, "cluster 'c' of {file}: saw a server that is not a server URL"),
    "a server with an invalid port": ({"server": "https://x:port"}, {}, "saw a server that is not a server URL"),
    "a server with a password": ({"server": f"https://me:{SECRET}@x"}, {}, "saw a server that is not a server URL"),
    "insecure with authority": (
        {"insecure-skip-tls-verify": True, "certificate-authority-data": base64_text(PEM)},
        {},
        "saw insecure-skip-tls-verify together with a certificate-authority, expected one of the two",
    ),
    "no authority file": (
        {"certificate-authority": "ca.crt"},
        {},
        "cluster 'c' of {file}: certificate-authority: saw {folder}/ca.crt: No such file or directory, expected a readable file",
    ),
    "an authority that is not base64": (
        {"certificate-authority-data": "%%%"},
        {},
        "certificate-authority-data: saw something that is not base64",
    ),
    "an authority that is not PEM": (
        {"certificate-authority-data": base64_text(b"hello")},
        {},
        "saw 5 bytes that are not certificates in PEM",
    ),
    "a certificate without key": (
        {},
        {"client-certificate-data": base64_text(PEM)},
        "user 'u' of {file}: saw client-certificate without client-key, expected both or neither",
    ),
    "a key without certificate": (
        {},
        {"client-key-data": base64_text(MINE.private_key_pem.bytes())},
        "saw client-key without client-certificate",
    ),
    "a key of another certificate": (
        {},
        {
            "client-certificate-data": base64_text(CA.issue_cert("x@y.z").cert_chain_pems[0].bytes()),
            "client-key-data": base64_text(MINE.private_key_pem.bytes()),
        },
        "saw a client certificate and key that cannot be used (KEY_VALUES_MISMATCH)",
    ),
    "an invalid certificate": (
        {},
        {"client-certificate-data": base64_text(b"x"), "client-key-data": base64_text(b"y")},
        "saw a client certificate and key that cannot be used",
    ),
    "a token with a line break": ({}, {"token": f"{SECRET}\n{SECRET}"}, "user 'u' of {file}: saw a token with spaces, line breaks"),
    "a token and a name": ({}, {"token": SECRET, "username": "me"}, "saw a token and a username, expected one of the two"),
    "gcp": ({}, {"auth-provider": {"name": "gcp", "config": {"access-token": SECRET}}}, "gke-gcloud-auth-plugin"),
    "azure": ({}, {"auth-provider": {"name": "azure"}}, "saw the auth-provider 'azure', which Kubernetes removed in 1.26"),
    "some provider": ({}, {"auth-provider": {"name": "mine"}}, "use an exec plugin"),
    "socks": ({"proxy-url": "socks5://me:hidden@proxy:1080"}, {}, "cluster 'c' of {file}: proxy-url: saw a socks5 proxy at proxy"),
    "a proxy of another kind": ({"proxy-url": f"ftp://me:{SECRET}@proxy"}, {}, "proxy-url: saw the scheme 'ftp'"),
    "a proxy that is not a URL": ({"proxy-url": "http://[::1"}, {}, "proxy-url: saw an invalid URL"),
    "an old plugin": ({}, {"exec": {"apiVersion": "client.authentication.k8s.io/v1alpha1", "command": "x"}}, "saw the apiVersion '"),
    "no plugin": ({}, {"exec": {"apiVersion": V1, "interactiveMode": "Never"}}, "exec: saw no command"),
    "no mode": ({}, {"exec": {"apiVersion": V1, "command": "x"}}, "saw no interactiveMode, which client.authentication.k8s.io/v1 needs"),
    "an invalid mode": (
        {},
        {"exec": {"apiVersion": V1, "command": "x", "interactiveMode": "Ever"}},
        "saw the interactiveMode 'Ever', expected one of Never, IfAvailable, Always",
    ),
    "groups without a user": ({}, {"as-groups": ["a"]}, "without as, expected the user to act as"),
    "a line break in the impersonated user": ({}, {"as": "a\nb"}, "saw line breaks in the impersonation settings"),
    "a number for a password": ({}, {"username": "me", "password": 1234567}, "Expected `str | null`, got `int`"),
}


@pytest.mark.parametrize("name", WRONG)
def test_mistakes_in_a_kubeconfig_are_reported_without_secrets(tmp_path: Path, name: str) -> None:
    cluster, user, expected = WRONG[name]
    with pytest.raises(AccessError) as raised:
        read(tmp_path, cluster, user)
    text = str(raised.value)
    assert expected.format(file=tmp_path / "config", folder=tmp_path) in text
    assert "expected" in text.lower()
    for secret in (SECRET, "hidden", "1234567"):
        assert secret not in text


REFERENCES: dict[str, tuple[dict[str, Any], str, str]] = {
    "no current context": ({"current-context": ""}, "", "saw no current-context, expected one of 'here'"),
    "an unknown current context": ({"current-context": "gone"}, "", "saw no context 'gone' (the current-context), expected one of 'here'"),
    "an unknown context": ({}, "gone", "saw no context 'gone', expected one of 'here'"),
    "no contexts": ({"contexts": None}, "", "saw no contexts, expected at least one; name another file with --kubeconfig or KUBECONFIG"),
    "an unknown cluster": (
        {"clusters": []},
        "",
        "saw the cluster 'c', expected one of the file's, which has none",
    ),
    "an unknown user": ({"users": [{"name": "v"}]}, "", "context 'here' of {file}: saw the user 'u', expected one of 'v'"),
    "a list for a name": ({"clusters": [{"name": []}]}, "", "saw something unexpected in a kubeconfig"),
}


@pytest.mark.parametrize("name", REFERENCES)
def test_a_reference_to_a_missing_kubeconfig_entry_is_reported_with_the_existing_names(tmp_path: Path, name: str) -> None:
    changes, context, expected = REFERENCES[name]
    file = write(tmp_path / "config", {**kubeconfig({}, {}), **changes})
    with pytest.raises(AccessError) as raised:
        from_kubeconfig([file], context=context, environ={})
    assert expected.format(file=file) in str(raised.value)


@pytest.mark.parametrize(
    "text", [f"users:\n- token: {SECRET}: {SECRET}\n", f"users: !{SECRET} x", f"- {SECRET}", f"users: [{SECRET}]", "\x00"]
)
def test_a_file_that_is_not_a_kubeconfig_is_reported_without_its_content(tmp_path: Path, text: str) -> None:
    file = write(tmp_path / "config", text)
    with pytest.raises(AccessError, match="kubeconfig") as raised:
        from_kubeconfig([file], environ={})
    assert str(file) in str(raised.value)
    assert SECRET not in str(raised.value)


def test_a_kubeconfig_given_by_name_must_exist(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="saw No such file or directory, expected a readable file"):
        find_access({}, kubeconfig=tmp_path / "none")


def pod(root: Path) -> Path:
    write(root / "token", "pod-token")
    write(root / "ca.crt", PEM.decode())
    write(root / "namespace", "gpuscaler\n")
    return root


SERVICE = {"KUBERNETES_SERVICE_HOST": "10.96.0.1", "KUBERNETES_SERVICE_PORT": "443"}


async def test_a_pod_uses_its_service_account(tmp_path: Path) -> None:
    access = in_cluster(SERVICE, root=pod(tmp_path))
    assert (access.server, access.namespace, access.compress) == ("https://10.96.0.1:443", "gpuscaler", False)
    assert access.tls.authorities() == PEM
    assert (await presented(access)).headers == {"authorization": "Bearer pod-token"}


def test_a_pod_may_have_an_ipv6_service(tmp_path: Path) -> None:
    assert in_cluster({**SERVICE, "KUBERNETES_SERVICE_HOST": "fd00::1"}, root=pod(tmp_path)).server == "https://[fd00::1]:443"


def test_outside_a_pod_there_is_no_service_account(tmp_path: Path) -> None:
    with pytest.raises(AccessError, match="saw no KUBERNETES_SERVICE_HOST"):
        in_cluster({}, root=tmp_path)


@pytest.mark.parametrize("name", ["token", "ca.crt"])
def test_a_pod_without_a_mounted_account_gets_an_error_with_what_to_set(tmp_path: Path, name: str) -> None:
    (pod(tmp_path) / name).unlink()
    with pytest.raises(AccessError, match=f"saw no .*{name}.*automountServiceAccountToken: true"):
        in_cluster(SERVICE, root=tmp_path)


def test_cluster_access_is_searched_in_the_order_of_kubectl(tmp_path: Path) -> None:
    def config(name: str) -> Path:
        return write(tmp_path / name, kubeconfig({"server": f"https://{name.replace('/', '-')}"}))

    home, first, second = config(".kube/config"), config("one"), config("two")
    root = pod(tmp_path / "pod")
    environ = {"HOME": str(tmp_path), **SERVICE}
    assert (
        find_access({**environ, "KUBECONFIG": f"{tmp_path}/none::{first}:{second}"}, kubeconfig=second, root=root).server == "https://two"
    )
    assert find_access({**environ, "KUBECONFIG": f"{tmp_path}/none::{first}:{second}"}, root=root).server == "https://one"
    assert find_access(environ, root=root).server == "https://.kube-config"
    home.unlink()
    assert find_access(environ, root=root).server == "https://10.96.0.1:443"
    with pytest.raises(AccessError, match=r"saw no kubeconfig \(looked at .*/.kube/config\)"):
        find_access(environ, context="here", root=root)
    with pytest.raises(AccessError, match="no place, since KUBECONFIG and HOME are not set"):
        find_access({}, root=root)
