"""Chooses the proxy to an API server: the kubeconfig's, else the environment's, by the rules of Go's net/http."""

import ipaddress
from collections.abc import Mapping
from urllib.parse import SplitResult, urlsplit

from gpuscaler.kube.errors import AccessError

_PORTS = {"http": 80, "https": 443}


def checked_proxy(proxy: str, source: str) -> str:
    """``proxy`` with a scheme, if it is usable. Messages leave out the name and password that a proxy's URL may contain."""
    url = proxy if "://" in proxy else f"http://{proxy}"
    try:
        parts = urlsplit(url)
        usable = bool(parts.hostname) and (parts.port or 1) > 0
    except ValueError:
        raise AccessError(f"{source}: saw an invalid URL, expected http://HOST:PORT or https://HOST:PORT; correct it") from None
    if parts.scheme.startswith("socks"):
        raise AccessError(
            f"{source}: saw a {parts.scheme} proxy at {parts.hostname}, expected http://HOST:PORT or https://HOST:PORT; "
            "SOCKS is not supported, put an HTTP proxy before it or tunnel the API server's port"
        )
    if parts.scheme not in _PORTS or not usable:
        raise AccessError(f"{source}: saw the scheme {parts.scheme!r}, expected http://HOST:PORT or https://HOST:PORT; correct it")
    return url


def proxy_of(server: SplitResult, environ: Mapping[str, str]) -> str:
    """The proxy that the environment names for ``server``, empty for none. Loopback addresses are never reached through a proxy."""
    name = f"{server.scheme}_proxy"
    variable = next((key for key in (name.upper(), name) if environ.get(key)), "")
    # A CGI program must not trust HTTP_PROXY, which a request header can set; Go refuses it there too.
    if not variable or (variable == "HTTP_PROXY" and environ.get("REQUEST_METHOD")):
        return ""
    excluded = environ.get("NO_PROXY") or environ.get("no_proxy") or ""
    host, port = server.hostname or "", server.port or _PORTS[server.scheme]
    return "" if _is_excluded(host, port, excluded) else checked_proxy(environ[variable], f"the environment's {variable}")


def _is_excluded(host: str, port: int, excluded: str) -> bool:
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    if host == "localhost" or (address is not None and address.is_loopback):
        return True
    return any(_matches_rule(rule.strip().lower(), host.lower(), port, address) for rule in excluded.split(",") if rule.strip())


def _matches_rule(rule: str, host: str, port: int, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if rule == "*":
        return True
    if "/" in rule:
        try:
            return address is not None and address in ipaddress.ip_network(rule, strict=False)
        except ValueError:
            return False
    name, rule_port = _split_port(rule)
    if rule_port and rule_port != port:
        return False
    if address is not None:
        try:
            return ipaddress.ip_address(name) == address
        except ValueError:
            return False
    # example.com matches itself and its subdomains, .example.com and *.example.com only the subdomains.
    name = name.removeprefix("*")
    return host.endswith(name) if name.startswith(".") else host == name or host.endswith(f".{name}")


def _split_port(rule: str) -> tuple[str, int]:
    """``host:port`` split in two; an IPv6 address keeps its colons unless it is in brackets."""
    if rule.startswith("["):
        name, _, port = rule[1:].partition("]")
        return name, int(port[1:]) if port[1:].isdecimal() else 0
    name, colon, port = rule.rpartition(":")
    return (name, int(port)) if colon and port.isdecimal() and ":" not in name else (rule, 0)
