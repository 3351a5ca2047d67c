"""The proxy from the environment, by the rules of Go's httpproxy package."""

from urllib.parse import urlsplit

import pytest

from gpuscaler.kube.errors import AccessError
from gpuscaler.kube.proxies import checked_proxy, proxy_of

HTTPS = {"HTTPS_PROXY": "http://proxy:3128"}


def through(server: str, **environ: str) -> str:
    return proxy_of(urlsplit(server), environ)


@pytest.mark.parametrize(
    ("server", "environ", "expected"),
    [
        ("https://k8s.example.org:6443", HTTPS, "http://proxy:3128"),
        ("https://k8s.example.org:6443", {"https_proxy": "proxy:3128"}, "http://proxy:3128"),
        ("https://k8s.example.org:6443", {"HTTPS_PROXY": "", "https_proxy": "https://p"}, "https://p"),
        ("https://k8s.example.org:6443", {"HTTP_PROXY": "http://proxy"}, ""),
        ("http://k8s.example.org", {"HTTP_PROXY": "http://proxy"}, "http://proxy"),
        ("http://k8s.example.org", {"HTTP_PROXY": "http://proxy", "REQUEST_METHOD": "GET"}, ""),
        ("https://localhost:6443", HTTPS, ""),
        ("https://127.0.0.5:6443", HTTPS, ""),
        ("https://[::1]:6443", HTTPS, ""),
    ],
)
def test_the_environment_names_a_proxy_by_scheme(server: str, environ: dict[str, str], expected: str) -> None:
    assert through(server, **environ) == expected


@pytest.mark.parametrize(
    ("rules", "direct"),
    [
        ("*", True),
        ("example.org", True),
        (".example.org", True),
        ("*.example.org", True),
        ("K8S.Example.org", True),
        ("other.org, k8s.example.org:6443", True),
        ("k8s.example.org:443", False),
        ("ample.org", False),
        ("10.0.0.0/8", False),
        (".k8s.example.org", False),
        ("", False),
        (",,", False),
    ],
)
def test_host_names_can_be_excluded_from_the_proxy(rules: str, direct: bool) -> None:
    assert (through("https://k8s.example.org:6443", **HTTPS, NO_PROXY=rules) == "") is direct


@pytest.mark.parametrize(
    ("rules", "direct"),
    [
        ("10.1.2.3", True),
        ("10.1.2.3:6443", True),
        ("10.1.2.3:443", False),
        ("10.0.0.0/8", True),
        ("10.1.2.4/31", False),
        ("10.1.2.3/99", False),
        ("fd00::/8", False),
        ("1.2.3", False),
    ],
)
def test_ip_addresses_can_be_excluded_from_the_proxy(rules: str, direct: bool) -> None:
    assert (through("https://10.1.2.3:6443", **HTTPS, no_proxy=rules) == "") is direct


@pytest.mark.parametrize(("rules", "direct"), [("[fd00::1]:6443", True), ("fd00::1", True), ("[fd00::1]:443", False), ("fd00::/8", True)])
def test_ipv6_addresses_can_be_excluded_from_the_proxy(rules: str, direct: bool) -> None:
    assert (through("https://[fd00::1]:6443", **HTTPS, NO_PROXY=rules) == "") is direct


@pytest.mark.parametrize("proxy", ["socks5://me:hidden@proxy:1080", "socks5h://me:hidden@proxy:1080", "ftp://me:hidden@proxy", "http://"])
def test_an_unusable_proxy_is_reported_without_its_password(proxy: str) -> None:
    with pytest.raises(AccessError, match="the environment's HTTPS_PROXY: saw") as raised:
        through("https://k8s.example.org", HTTPS_PROXY=proxy)
    assert "hidden" not in str(raised.value)


def test_a_proxy_address_needs_no_scheme() -> None:
    assert checked_proxy("proxy.corp:8080", "x") == "http://proxy.corp:8080"
