"""``python -m tests.embedded.aws.contract --account ID``: make the same calls to a user's own account and to our endpoint; compare.

Credentials, profile and region are those of the environment, as boto3 finds them. Exit 0 if both agree, 1 if they differ or something
is left over, 2 if the arguments are invalid, 3 if the account cannot be read.
"""

import argparse
import os
import secrets
import sys
import time

import boto3
from botocore.exceptions import BotoCoreError, ClientError
from tests.embedded.aws.contract.playing import account_side, compare, cost, our_side

#: The newest Amazon Linux of any version.
IMAGE = "resolve:ssm:/aws/service/ami-amazon-linux-latest/al2023-ami-kernel-default-x86_64"


def main(arguments: list[str] | None = None) -> int:
    options = parse_arguments(arguments)
    if not options.account:
        return wrong("saw no account, expected its number: make aws-contract ACCOUNT=123456789012")
    session = boto3.session.Session()
    region = session.region_name or os.environ.get("AWS_REGION", "")
    if not region:
        return wrong("saw no region, expected one; set AWS_REGION, or AWS_PROFILE to a profile that has one")
    most = cost(options.type, region)
    paid = options.dollars > 0
    if paid and most > options.dollars:
        return wrong(
            f"{options.type} in {region} may cost ${most:.2f}, and --dollars allows ${options.dollars:.2f}; allow more, or 0 for free calls"
        )
    run = f"gpuscaler-contract-{secrets.token_hex(4)}"
    try:
        account = account_side(session, region, run=run, kind=options.type, image=options.image, subnet=options.subnet, wait=time.sleep)
        if account.account != options.account:
            return wrong(f"saw credentials of account {account.account}, expected those of {options.account}, which --account names")
        print(f"account {account.account}, {region}; all resources are named {run}; at most ${most if paid else 0:.2f}")
        emulated = our_side(region, run=run, kind=options.type, image=options.image)
        report = compare(account, emulated, paid=paid, tell=print)
    except ValueError as error:
        return wrong(str(error))
    except (ClientError, BotoCoreError) as error:
        print(f"the account cannot be read: {error}", file=sys.stderr)
        return 3
    print(report.summary())
    return 1 if report.differences or report.left else 0


def wrong(why: str) -> int:
    print(why, file=sys.stderr)
    return 2


def parse_arguments(arguments: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.embedded.aws.contract", description=__doc__)
    parser.add_argument("--account", required=True, help="the account's number, so that no other account is touched")
    parser.add_argument("--dollars", type=float, default=0.0, help="limit for the cost of machines; 0, the default, launches none")
    parser.add_argument("--type", default="t3.large", help="instance type to launch (default: t3.large)")
    parser.add_argument("--image", default=IMAGE, help="image to start (default: the newest Amazon Linux)")
    parser.add_argument("--subnet", default="", help="subnet for the machines (default: a default subnet)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
