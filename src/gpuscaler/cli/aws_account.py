"""Options and messages shared by commands that serve a simulated AWS account."""

import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from gpuscaler.embedded.aws.serving.beside import AwsAccountServer

AWS_SIMULATED = "aws-simulated"

F = TypeVar("F", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--cloud", type=click.Choice((AWS_SIMULATED,)), help="Also serve a simulated AWS account, for boto3 and the AWS CLI."),
    click.option("--aws-port", default=0, type=click.IntRange(0, 65535), metavar="N", help="Port of the account; default: a free one."),
    click.option("--aws-region", multiple=True, metavar="REGION", help="Region of the account; repeatable. Default: us-east-1."),
    click.option("--aws-boot", metavar="DURATION", help="How long instances boot, such as 20s; default: about 3 minutes."),
    click.option(
        "--aws-condition", multiple=True, metavar="KEY=VALUE", help="Behaviour of the account, such as spelling=random; repeatable."
    ),
    click.option(
        "--spot",
        type=click.Path(path_type=Path, dir_okay=False),
        metavar="FILE",
        help="Availability or price series for the account's spot markets.",
    ),
)


def aws_options(command: F) -> F:
    """``--cloud``, ``--aws-port``, ``--aws-region``, ``--aws-boot``, ``--aws-condition`` and ``--spot``."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def simulated_account(
    *,
    cloud: str | None,
    aws_port: int,
    aws_region: tuple[str, ...],
    aws_boot: str | None,
    aws_condition: tuple[str, ...],
    spot: Path | None,
) -> "AwsAccountServer | None":
    """Return the account that the options ask for, or None."""
    boot = _boot(aws_boot)
    if cloud is None:
        account_options = {
            "--aws-port": aws_port,
            "--aws-region": aws_region,
            "--aws-boot": aws_boot,
            "--aws-condition": aws_condition,
            "--spot": spot,
        }
        for option, value in account_options.items():
            if value:
                raise click.BadParameter(f"saw this option without --cloud, expected both; add --cloud {AWS_SIMULATED}", param_hint=option)
        return None
    from gpuscaler.embedded.aws.serving.beside import AwsAccountServer

    def ready(url: str, queues: Iterable[str]) -> None:
        click.echo(f"AWS is at {url}; it accepts any key and secret. Interruption notices arrive in: {', '.join(queues)}")

    conditions = _conditions(aws_condition)
    return AwsAccountServer(regions=aws_region or ("us-east-1",), port=aws_port, spot=spot, boot=boot, conditions=conditions, ready=ready)


def _conditions(pairs: tuple[str, ...]) -> dict[str, str]:
    from gpuscaler.embedded.aws.conditions import Conditions, with_changes

    settings = dict(pair.partition("=")[::2] for pair in pairs)
    try:
        with_changes(Conditions(), settings)
    except ValueError as error:
        raise click.BadParameter(f"{error}; write KEY=VALUE", param_hint="--aws-condition") from error
    return settings


def _boot(text: str | None) -> float | None:
    if text is None:
        return None
    from gpuscaler.model.durations import parse_duration

    try:
        seconds = parse_duration(text)
    except ValueError:
        seconds = -1.0
    if seconds <= 0:
        raise click.BadParameter(f"saw {text!r}, expected a duration such as 20s", param_hint="--aws-boot")
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
