"""``gpuscaler metrics``: serves GPU metrics to the HorizontalPodAutoscaler, with the command line of prometheus-adapter."""

import asyncio
import gc
import os
import socket
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Any, TypeVar

import click

from gpuscaler.cli.ending import until_terminated
from gpuscaler.cli.reaching import resolve_access

if TYPE_CHECKING:
    from gpuscaler.metrics.command.command import Options
    from gpuscaler.metrics.command.service import MetricsService

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path)


class AdapterCommand(click.Command):
    """Accepts every flag of prometheus-adapter, and reports the flags that have no effect here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from gpuscaler.metrics.command.command import FlagError, without_ignored

        switches = frozenset(
            option.removeprefix("--")
            for parameter in self.params
            if isinstance(parameter, click.Option) and parameter.is_flag
            for option in parameter.opts
        )
        try:
            remaining, notes = without_ignored(args, switches)
        except FlagError as error:
            raise click.UsageError(str(error), ctx) from error
        for note in notes:
            click.echo(f"note: {note}", err=True)
        return super().parse_args(ctx, remaining)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _file_flag(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=_FILE, metavar="FILE", help=text)


def _names_option(name: str, text: str, default: tuple[str, ...] = ()) -> Callable[[F], F]:
    return click.option(name, multiple=True, default=default, metavar="NAMES", help=text)


def _duration_flag(name: str, default: str, text: str) -> Callable[[F], F]:
    return click.option(name, default=default, show_default=bool(default), metavar="DURATION", help=text)


_PROMETHEUS = _options(
    click.option("--prometheus-url", multiple=True, metavar="URL", help="A Prometheus; several are tried one after the other."),
    _file_flag("--prometheus-auth-config", "A kubeconfig with the credentials for Prometheus."),
    click.option("--prometheus-auth-incluster", is_flag=True, help="Use the pod's service account for Prometheus."),
    _file_flag("--prometheus-ca-file", "Certificate authority of Prometheus."),
    _file_flag("--prometheus-client-tls-cert-file", "Client certificate for Prometheus."),
    _file_flag("--prometheus-client-tls-key-file", "Key of the client certificate."),
    _file_flag("--prometheus-token-file", "Token for Prometheus; reread when it changes."),
    click.option("--prometheus-header", multiple=True, metavar="NAME=VALUE", help="A header of every query to Prometheus."),
    click.option(
        "--prometheus-header-file", multiple=True, metavar="NAME=FILE", help="A header with its value in a file; reread when it changes."
    ),
    click.option(
        "--prometheus-verb",
        type=click.Choice(["GET", "POST"]),
        default="POST",
        show_default=True,
        help="HTTP method of queries to Prometheus.",
    ),
    _duration_flag("--metrics-relist-interval", "10m", "How often the list of series is read from Prometheus."),
    _duration_flag("--metrics-max-age", "", "Maximum age of a series; default: --metrics-relist-interval."),
)
_KUBERNETES = _options(
    _file_flag("--lister-kubeconfig", "Kubeconfig for reading objects; default: as for kubectl."),
    _file_flag("--authentication-kubeconfig", "Kubeconfig for token reviews and for the authorities of front proxies."),
    _file_flag("--authorization-kubeconfig", "Kubeconfig for access reviews of users."),
    click.option("--client-qps", type=click.FloatRange(0.1), default=50.0, show_default=True, help="Requests per second for objects."),
    click.option("--client-burst", type=click.IntRange(1), default=100, show_default=True, help="Maximum burst of such requests."),
    _duration_flag("--authentication-token-webhook-cache-ttl", "10s", "How long a token review is cached."),
    _duration_flag("--authorization-webhook-cache-authorized-ttl", "10s", "How long a granted access review is cached."),
    _duration_flag("--authorization-webhook-cache-unauthorized-ttl", "10s", "How long a denied access review is cached."),
    _names_option("--authorization-always-allow-paths", "Paths that need no authorization.", ("/healthz", "/readyz", "/livez")),
)
_TRUST = _options(
    _file_flag("--client-ca-file", "Certificate authority of clients; default: from the cluster's ConfigMap."),
    _file_flag("--requestheader-client-ca-file", "Certificate authority of front proxies; default: from the cluster's ConfigMap."),
    _names_option("--requestheader-allowed-names", "Common names allowed for front proxies; default: any."),
    _names_option("--requestheader-username-headers", "Headers in which front proxies give the user.", ("x-remote-user",)),
    _names_option("--requestheader-uid-headers", "Headers with the user's UID."),
    _names_option("--requestheader-group-headers", "Headers with the user's groups.", ("x-remote-group",)),
    _names_option("--requestheader-extra-headers-prefix", "Prefixes of headers with extra attributes of the user.", ("x-remote-extra-",)),
)
_SERVING = _options(
    click.option(
        "--secure-port", type=click.IntRange(0, 65535), default=6443, show_default=True, help="Port to serve on; 0 chooses a free one."
    ),
    click.option(
        "--bind-address", default="0.0.0.0", show_default=True, metavar="IP", help="Address to serve on; :: means all, IPv4 and IPv6."
    ),
    _file_flag("--tls-cert-file", "Certificate of the server, reread when it changes; default: self-made."),
    _file_flag("--tls-private-key-file", "Key of the server's certificate."),
    click.option("--cert-dir", type=_FILE, metavar="FOLDER", help="Folder for a self-made certificate."),
)


@click.command(cls=AdapterCommand)
@click.option(
    "--source",
    type=click.Choice(["prometheus", "exporters"]),
    default="prometheus",
    show_default=True,
    help="Source of values: Prometheus, queried by rules, or gpuscaler's exporters, scraped every second.",
)
@_file_flag("--config", "Rules in the format of prometheus-adapter; default: the built-in rules.")
@_file_flag("--settings", "Settings for which prometheus-adapter has no flags.")
@_PROMETHEUS
@_KUBERNETES
@_TRUST
@_SERVING
def metrics(**flags: Any) -> None:
    """Serve custom.metrics.k8s.io and external.metrics.k8s.io to the HorizontalPodAutoscaler, until stopped."""
    from gpuscaler.kube.errors import AccessError
    from gpuscaler.metrics.command.command import FlagError
    from gpuscaler.model.reading.errors import SettingsError
    from gpuscaler.serving.logs import lines_to
    from gpuscaler.serving.tls import CertificateError

    try:
        options = _parsed(flags)
        with lines_to(sys.stderr, options.settings.level, now=time.time):
            asyncio.run(until_terminated(_service(options).run()))
    except (FlagError, AccessError, SettingsError, CertificateError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        place = error.filename or f"{options.address}:{options.port}"
        click.echo(f"{place}: saw {error.strerror or error}, expected a usable file or address; choose another", err=True)
        sys.exit(2)


def _parsed(flags: dict[str, Any]) -> "Options":
    """Return the flags in parsed form. Raises FlagError and SettingsError."""
    from gpuscaler.kube.reviews import Ttl
    from gpuscaler.metrics.command.command import Options, TrustFlags, parse_header, parse_header_file, parse_seconds, split_values
    from gpuscaler.metrics.command.settings import MetricsSettings, load

    relist = parse_seconds("--metrics-relist-interval", flags["metrics_relist_interval"])
    age = parse_seconds("--metrics-max-age", flags["metrics_max_age"]) if flags["metrics_max_age"] else relist
    trust = TrustFlags(
        client_ca=flags["client_ca_file"],
        proxy_ca=flags["requestheader_client_ca_file"],
        allowed_names=split_values(flags["requestheader_allowed_names"]),
        user_headers=split_values(flags["requestheader_username_headers"]),
        uid_headers=split_values(flags["requestheader_uid_headers"]),
        group_headers=split_values(flags["requestheader_group_headers"]),
        extra_prefixes=split_values(flags["requestheader_extra_headers_prefix"]),
    )
    ttl = Ttl(
        *(
            parse_seconds(flag, flags[flag.removeprefix("--").replace("-", "_")], zero=True)
            for flag in (
                "--authentication-token-webhook-cache-ttl",
                "--authorization-webhook-cache-authorized-ttl",
                "--authorization-webhook-cache-unauthorized-ttl",
            )
        )
    )
    return Options(
        source=flags["source"],
        prometheus_urls=split_values(flags["prometheus_url"]),
        prometheus_kubeconfig=flags["prometheus_auth_config"],
        prometheus_in_cluster=flags["prometheus_auth_incluster"],
        prometheus_ca=flags["prometheus_ca_file"],
        prometheus_certificate=flags["prometheus_client_tls_cert_file"],
        prometheus_key=flags["prometheus_client_tls_key_file"],
        prometheus_token=flags["prometheus_token_file"],
        prometheus_headers=tuple(parse_header(text) for text in flags["prometheus_header"]),
        prometheus_header_files=tuple(parse_header_file(text) for text in flags["prometheus_header_file"]),
        prometheus_verb=flags["prometheus_verb"],
        rules=flags["config"],
        relist=relist,
        max_age=age,
        lister_kubeconfig=flags["lister_kubeconfig"],
        authentication_kubeconfig=flags["authentication_kubeconfig"],
        authorization_kubeconfig=flags["authorization_kubeconfig"],
        trust=trust,
        ttl=ttl,
        always_allowed=split_values(flags["authorization_always_allow_paths"]),
        certificate=flags["tls_cert_file"],
        key=flags["tls_private_key_file"],
        certificate_folder=flags["cert_dir"],
        address=flags["bind_address"],
        port=flags["secure_port"],
        qps=flags["client_qps"],
        burst=flags["client_burst"],
        settings=load(flags["settings"]) if flags["settings"] is not None else MetricsSettings(),
    )


def _service(options: "Options") -> "MetricsService":
    from gpuscaler.metrics.command.rules import RulesFile
    from gpuscaler.metrics.command.service import ApiAccess, Clocks, MetricsService

    options.check()
    rules = RulesFile(options.rules)
    files = (options.lister_kubeconfig, options.authentication_kubeconfig, options.authorization_kubeconfig)
    accesses = {file: resolve_access(file, "") for file in dict.fromkeys(files)}
    service = MetricsService(
        options=options,
        accesses=ApiAccess(*(accesses[file] for file in files)),
        rules=rules,
        environ=os.environ,
        clocks=Clocks(time.monotonic, time.time),
        random=Random(f"{socket.gethostname()}{os.getpid()}"),
        listening=lambda port: click.echo(f"serving on port {port}", err=True),
    )
    # Modules and loaded files stay in memory: garbage collections that scan them each time would stall the event loop.
    gc.freeze()
    return service
