"""``gpuscaler metrics``: GPU metrics for the HorizontalPodAutoscaler, with the command line of prometheus-adapter."""

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
from gpuscaler.cli.reaching import find

if TYPE_CHECKING:
    from gpuscaler.metrics.command.command import Options
    from gpuscaler.metrics.command.service import MetricsService

F = TypeVar("F", bound=Callable[..., Any])
_FILE = click.Path(path_type=Path)


class AdapterCommand(click.Command):
    """Takes every flag that prometheus-adapter takes, and says which of them mean nothing here."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        from gpuscaler.metrics.command.command import FlagError, without_ignored

        switches = frozenset(
            option.removeprefix("--") for one in self.params if isinstance(one, click.Option) and one.is_flag for option in one.opts
        )
        try:
            left, notes = without_ignored(args, switches)
        except FlagError as error:
            raise click.UsageError(str(error), ctx) from error
        for note in notes:
            click.echo(f"note: {note}", err=True)
        return super().parse_args(ctx, left)


def _options(*options: Callable[[F], F]) -> Callable[[F], F]:
    def decorate(command: F) -> F:
        for option in reversed(options):
            command = option(command)
        return command

    return decorate


def _file(name: str, text: str) -> Callable[[F], F]:
    return click.option(name, type=_FILE, metavar="FILE", help=text)


def _several(name: str, text: str, default: tuple[str, ...] = ()) -> Callable[[F], F]:
    return click.option(name, multiple=True, default=default, metavar="NAMES", help=text)


def _duration(name: str, default: str, text: str) -> Callable[[F], F]:
    return click.option(name, default=default, show_default=bool(default), metavar="DURATION", help=text)


_PROMETHEUS = _options(
    click.option("--prometheus-url", multiple=True, metavar="URL", help="A Prometheus; several are asked one after the other."),
    _file("--prometheus-auth-config", "A kubeconfig whose credentials are shown to Prometheus."),
    click.option("--prometheus-auth-incluster", is_flag=True, help="Show Prometheus the pod's own credentials."),
    _file("--prometheus-ca-file", "Who vouches for Prometheus."),
    _file("--prometheus-client-tls-cert-file", "The certificate that is shown to Prometheus."),
    _file("--prometheus-client-tls-key-file", "Its key."),
    _file("--prometheus-token-file", "A token that is shown to Prometheus, read again as it changes."),
    click.option("--prometheus-header", multiple=True, metavar="NAME=VALUE", help="A header of every question to Prometheus."),
    click.option(
        "--prometheus-header-file", multiple=True, metavar="NAME=FILE", help="A header whose value is in a file, read again as it changes."
    ),
    click.option(
        "--prometheus-verb", type=click.Choice(["GET", "POST"]), default="POST", show_default=True, help="How Prometheus is asked."
    ),
    _duration("--metrics-relist-interval", "10m", "How often Prometheus is asked which series there are."),
    _duration("--metrics-max-age", "", "How old a series may be; the default is --metrics-relist-interval."),
)
_KUBERNETES = _options(
    _file("--lister-kubeconfig", "How the API server is asked for objects; the default is what kubectl takes."),
    _file("--authentication-kubeconfig", "How it is asked about tokens, and for the authorities of front proxies."),
    _file("--authorization-kubeconfig", "How it is asked what users may do."),
    click.option("--client-qps", type=click.FloatRange(0.1), default=50.0, show_default=True, help="Requests a second for objects."),
    click.option("--client-burst", type=click.IntRange(1), default=100, show_default=True, help="How many of them may be at once."),
    _duration("--authentication-token-webhook-cache-ttl", "10s", "For how long an answer about a token holds."),
    _duration("--authorization-webhook-cache-authorized-ttl", "10s", "For how long it holds that a user may."),
    _duration("--authorization-webhook-cache-unauthorized-ttl", "10s", "For how long it holds that a user may not."),
    _several("--authorization-always-allow-paths", "Paths that everybody may read.", ("/healthz", "/readyz", "/livez")),
)
_TRUST = _options(
    _file("--client-ca-file", "Who vouches for clients; the default is the cluster's ConfigMap."),
    _file("--requestheader-client-ca-file", "Who vouches for front proxies; the default is the cluster's ConfigMap."),
    _several("--requestheader-allowed-names", "Common names that front proxies may have; the default is any."),
    _several("--requestheader-username-headers", "Where front proxies say the user.", ("x-remote-user",)),
    _several("--requestheader-uid-headers", "Where they say its UID."),
    _several("--requestheader-group-headers", "Where they say its groups.", ("x-remote-group",)),
    _several("--requestheader-extra-headers-prefix", "How headers begin that say more of it.", ("x-remote-extra-",)),
)
_SERVING = _options(
    click.option("--secure-port", type=click.IntRange(0, 65535), default=6443, show_default=True, help="The port; 0 takes a free one."),
    click.option("--bind-address", default="0.0.0.0", show_default=True, metavar="IP", help="The address; :: is all of both kinds."),
    _file("--tls-cert-file", "The server's certificate, read again as it changes; without one it makes its own."),
    _file("--tls-private-key-file", "Its key."),
    click.option("--cert-dir", type=_FILE, metavar="FOLDER", help="Where a certificate that it makes itself is kept."),
)


@click.command(cls=AdapterCommand)
@click.option(
    "--source",
    type=click.Choice(["prometheus", "exporters"]),
    default="prometheus",
    show_default=True,
    help="Where values come from: a Prometheus by rules, or our exporters, scraped every second.",
)
@_file("--config", "The rules, as prometheus-adapter has them; without them those that are built in.")
@_file("--settings", "What prometheus-adapter has no flags for.")
@_PROMETHEUS
@_KUBERNETES
@_TRUST
@_SERVING
def metrics(**told: Any) -> None:
    """Serve custom.metrics.k8s.io and external.metrics.k8s.io to the HorizontalPodAutoscaler, until it is stopped."""
    from gpuscaler.kube.errors import AccessError
    from gpuscaler.metrics.command.command import FlagError
    from gpuscaler.serving.logs import lines_to
    from gpuscaler.serving.tls import CertificateError
    from gpuscaler.settings.errors import SettingsError

    try:
        options = _parsed(told)
        with lines_to(sys.stderr, options.settings.level, now=time.time):
            asyncio.run(until_terminated(_service(options).run()))
    except (FlagError, AccessError, SettingsError, CertificateError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
    except OSError as error:
        where = error.filename or f"{options.address}:{options.port}"
        click.echo(f"{where}: saw {error.strerror or error}, expected to use it; name another", err=True)
        sys.exit(2)


def _parsed(told: dict[str, Any]) -> "Options":
    """The flags as they are used. Raises FlagError and SettingsError."""
    from gpuscaler.kube.reviews import Ttl
    from gpuscaler.metrics.command.command import Options, TrustFlags, header, header_file, seconds, split
    from gpuscaler.metrics.command.settings import MetricsSettings, load

    relist = seconds("--metrics-relist-interval", told["metrics_relist_interval"])
    age = seconds("--metrics-max-age", told["metrics_max_age"]) if told["metrics_max_age"] else relist
    trust = TrustFlags(
        client_ca=told["client_ca_file"],
        proxy_ca=told["requestheader_client_ca_file"],
        allowed_names=split(told["requestheader_allowed_names"]),
        user_headers=split(told["requestheader_username_headers"]),
        uid_headers=split(told["requestheader_uid_headers"]),
        group_headers=split(told["requestheader_group_headers"]),
        extra_prefixes=split(told["requestheader_extra_headers_prefix"]),
    )
    ttl = Ttl(
        *(
            seconds(flag, told[flag.removeprefix("--").replace("-", "_")], zero=True)
            for flag in (
                "--authentication-token-webhook-cache-ttl",
                "--authorization-webhook-cache-authorized-ttl",
                "--authorization-webhook-cache-unauthorized-ttl",
            )
        )
    )
    return Options(
        source=told["source"],
        prometheus_urls=split(told["prometheus_url"]),
        prometheus_kubeconfig=told["prometheus_auth_config"],
        prometheus_in_cluster=told["prometheus_auth_incluster"],
        prometheus_ca=told["prometheus_ca_file"],
        prometheus_certificate=told["prometheus_client_tls_cert_file"],
        prometheus_key=told["prometheus_client_tls_key_file"],
        prometheus_token=told["prometheus_token_file"],
        prometheus_headers=tuple(header(one) for one in told["prometheus_header"]),
        prometheus_header_files=tuple(header_file(one) for one in told["prometheus_header_file"]),
        prometheus_verb=told["prometheus_verb"],
        rules=told["config"],
        relist=relist,
        max_age=age,
        lister_kubeconfig=told["lister_kubeconfig"],
        authentication_kubeconfig=told["authentication_kubeconfig"],
        authorization_kubeconfig=told["authorization_kubeconfig"],
        trust=trust,
        ttl=ttl,
        always_allowed=split(told["authorization_always_allow_paths"]),
        certificate=told["tls_cert_file"],
        key=told["tls_private_key_file"],
        certificate_folder=told["cert_dir"],
        address=told["bind_address"],
        port=told["secure_port"],
        qps=told["client_qps"],
        burst=told["client_burst"],
        settings=load(told["settings"]) if told["settings"] is not None else MetricsSettings(),
    )


def _service(options: "Options") -> "MetricsService":
    from gpuscaler.metrics.command.rules import RulesFile
    from gpuscaler.metrics.command.service import Accesses, Clocks, MetricsService

    options.check()
    rules = RulesFile(options.rules)
    files = (options.lister_kubeconfig, options.authentication_kubeconfig, options.authorization_kubeconfig)
    found = {file: find(file, "") for file in dict.fromkeys(files)}
    service = MetricsService(
        options=options,
        accesses=Accesses(*(found[file] for file in files)),
        rules=rules,
        environ=os.environ,
        clocks=Clocks(time.monotonic, time.time),
        random=Random(f"{socket.gethostname()}{os.getpid()}"),
        listening=lambda port: click.echo(f"serving at port {port}", err=True),
    )
    # Modules and what was read stay: collections that go over them each time would stall the event loop.
    gc.freeze()
    return service
