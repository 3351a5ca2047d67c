"""Options and messages shared by commands that serve a simulated account of a cloud."""

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from msgspec import Struct

    from gpuscaler.embedded.azure.state import Cluster
    from gpuscaler.embedded.serving.accounts import AccountServer

AWS_SIMULATED, AZURE_SIMULATED = "aws-simulated", "azure-simulated"

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option(
        "--cloud",
        type=click.Choice((AWS_SIMULATED, AZURE_SIMULATED)),
        help="Also serve a simulated account: of AWS, for boto3 and the AWS CLI, or of Azure, for its SDKs.",
    ),
    click.option("--aws-port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port of the account; default: a free one."),
    click.option("--aws-region", multiple=True, metavar="REGION", help="Region of the account; repeatable. Default: us-east-1."),
    click.option("--aws-boot", metavar="DURATION", help="How long instances boot, such as 20s; default: about 3 minutes."),
    click.option(
        "--aws-condition", multiple=True, metavar="KEY=VALUE", help="Behaviour of the account, such as spelling=random; repeatable."
    ),
    click.option("--azure-port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port of the account; default: a free one."),
    click.option("--azure-location", multiple=True, metavar="LOCATION", help="Location of the account; repeatable. Default: 'eastus'."),
    click.option("--azure-boot", metavar="DURATION", help="How long machines boot, such as 20s; default: about 3 minutes."),
    click.option(
        "--azure-condition", multiple=True, metavar="KEY=VALUE", help="Behaviour of the account, such as failed=vanish; repeatable."
    ),
    click.option(
        "--spot",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Availability or price series for the account's spot markets.",
    ),
)


def account_options(command: F) -> F:
    """``--cloud``, the options of each cloud, and ``--spot``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def simulated_account(*, cloud: str | None, spot: Path | None, **options: Any) -> "AccountServer | None":
    """Return the account that the options ask for, or None. ``options`` are those of the clouds, such as ``aws_port``."""
    for name, value in (*options.items(), ("spot", spot)):
        prefix = name.partition("_")[0]
        wanted = (AWS_SIMULATED, AZURE_SIMULATED) if prefix == "spot" else (f"{prefix}-simulated",)
        if value and cloud not in wanted:
            option = f"--{name.replace('_', '-')}"
            seen = "without --cloud" if cloud is None else f"with --cloud {cloud}"
            raise click.BadParameter(f"saw this option {seen}, expected both; add --cloud {' or '.join(wanted)}", param_hint=option)
    if cloud is None:
        return None
    prefix = cloud.partition("-")[0]
    own = {name.removeprefix(f"{prefix}_"): value for name, value in options.items() if name.startswith(f"{prefix}_")}
    boot = _boot(own["boot"], f"--{prefix}-boot")
    return (_aws if cloud == AWS_SIMULATED else _azure)(own, spot, boot)


def _aws(options: Mapping[str, Any], spot: Path | None, boot: float | None) -> "AccountServer":
    from gpuscaler.embedded.aws.conditions import Conditions
    from gpuscaler.embedded.aws.serving.beside import AwsAccountServer

    def ready(url: str, queues: Iterable[str]) -> None:
        click.echo(f"AWS is at {url}; it accepts any key and secret. Interruption notices arrive in: {', '.join(queues)}")

    settings = _conditions(options["condition"], "--aws-condition", Conditions())
    regions = options["region"] or ("us-east-1",)
    return AwsAccountServer(regions=regions, port=options["port"], spot=spot, boot=boot, conditions=settings, ready=ready)


def _azure(options: Mapping[str, Any], spot: Path | None, boot: float | None) -> "AccountServer":
    from gpuscaler.embedded.azure.conditions import Conditions
    from gpuscaler.embedded.azure.serving.beside import AzureAccountServer

    settings = _conditions(options["condition"], "--azure-condition", Conditions())
    locations = options["location"] or ("eastus",)
    return AzureAccountServer(locations=locations, port=options["port"], spot=spot, boot=boot, conditions=settings, ready=_azure_ready)


def _azure_ready(url: str, cluster: "Cluster") -> None:
    from gpuscaler.embedded.azure.contents import TENANT

    where = f"subscription {cluster.subscription}, AKS cluster {cluster.name} in resource group {cluster.group}"
    click.echo(f"Azure Resource Manager is at {url}; it accepts any token and any secret of tenant {TENANT}.")
    click.echo(f"It has {where}, with the pools {', '.join(cluster.pools)}. Machines are in resource group {cluster.node_group}.")
    environment = f"AZURE_AUTHORITY_HOST={url} AZURE_TENANT_ID={TENANT} AZURE_CLIENT_ID=any AZURE_CLIENT_SECRET=any"
    click.echo(f"For gpuscaler: export {environment}")


def _conditions(pairs: tuple[str, ...], option: str, defaults: "Struct") -> dict[str, str]:
    from gpuscaler.embedded.serving.conditions import with_changes

    settings = dict(pair.partition("=")[::2] for pair in pairs)
    try:
        with_changes(defaults, settings)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write KEY=VALUE", param_hint=option) from error
    return settings


def _boot(text: str | None, option: str) -> float | None:
    if text is None:
        return None
    from gpuscaler.model.durations import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        raise click.BadParameter(f"saw {text!r}, expected a duration such as 20s", param_hint=option)
    return seconds


@contextmanager
def report_unusable_account() -> Iterator[None]:
    """End the command with a message if botocore is not installed or a series cannot be used."""
    from gpuscaler.embedded.aws.wire.models import MissingExtraError
    from gpuscaler.simulation.traces.jobs import TraceError

    try:
        yield
    except (MissingExtraError, TraceError) as error:
        click.echo(str(error), err=True)
        sys.exit(2)
