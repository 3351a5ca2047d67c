"""Contents of every region of the simulated account: types, pods per node, prices, queues, and names that EC2 accepts."""

import json
from typing import Any

import pytest
from botocore.exceptions import ClientError
from tests.embedded.aws.conftest import Aws
from tests.embedded.aws.making import code

from gpuscaler.catalogue import types
from gpuscaler.clouds.aws.templates.instance_types import type_of
from gpuscaler.embedded.aws.messages.queues import make_queue


def described(client: Any, *names: str) -> list[Any]:
    return list(client.describe_instance_types(InstanceTypes=list(names))["InstanceTypes"])


@pytest.mark.parametrize("region", ["us-east-1", "us-west-2", "ap-northeast-1", "ap-south-2"])
def test_types_without_accelerators_are_known_in_every_region(region: str) -> None:
    client = Aws(regions=[region]).client("ec2", region)

    instance_types = described(client, "m6i.large", "m5.large", "c5.xlarge", "t2.medium", "t3.medium")

    assert {instance_type["InstanceType"]: type_of(instance_type).allocatable["pods"] for instance_type in instance_types} == {
        "m6i.large": 29,
        "m5.large": 29,
        "c5.xlarge": 58,
        "t2.medium": 17,
        "t3.medium": 17,
    }


def test_the_pod_limit_of_every_type_follows_from_its_interfaces_and_addresses() -> None:
    client = Aws().client("ec2")

    instance_types = [
        instance_type for page in client.get_paginator("describe_instance_types").paginate() for instance_type in page["InstanceTypes"]
    ]

    pods = {instance_type.name: instance_type.allocatable["pods"] for instance_type in types("aws")}
    assert {
        instance_type["InstanceType"]: type_of(instance_type).allocatable["pods"]
        for instance_type in instance_types
        if instance_type["InstanceType"] in pods
    } == pods


@pytest.mark.parametrize("regions", [["us-west-2"], ["ap-northeast-2", "eu-central-1"]])
def test_the_price_list_has_prices_of_every_region_of_the_account(regions: list[str]) -> None:
    aws = Aws(regions=regions)
    wanted = {"instanceType": "m5.large", "regionCode": regions[0], "operatingSystem": "Linux"}
    filters = [{"Type": "TERM_MATCH", "Field": key, "Value": value} for key, value in wanted.items()]

    for endpoint in ("us-east-1", "eu-central-1", "ap-south-1"):
        (row,) = aws.client("pricing", endpoint).get_products(ServiceCode="AmazonEC2", Filters=filters)["PriceList"]
        assert json.loads(row)["product"]["attributes"]["regionCode"] == regions[0]

    with pytest.raises(ClientError, match="no endpoint in us-west-1"):
        aws.client("pricing", "us-west-1").get_products(ServiceCode="AmazonEC2", Filters=filters)


def test_a_launch_template_name_of_two_letters_is_refused_as_in_ec2(aws: Aws) -> None:
    client = aws.client("ec2")
    client.meta.events.unregister("before-parameter-build.ec2.CreateLaunchTemplate")

    for name in ("g5", "no spaces", "x" * 129):
        with pytest.raises(ClientError) as refused:
            client.create_launch_template(LaunchTemplateName=name, LaunchTemplateData={"InstanceType": "g5.xlarge"})
        assert code(refused) == "InvalidLaunchTemplateName.MalformedException"


def test_queues_with_the_same_name_in_two_regions_have_different_urls() -> None:
    aws = Aws(regions=["us-east-1", "us-west-2"])
    host = "http://127.0.0.1:4566"
    urls = {name: make_queue(aws.account.region(name), "gpuscaler", {}, host=host).url for name in ("us-east-1", "us-west-2")}
    assert len(set(urls.values())) == 2

    # A client of one region serves all queues: the address decides.
    client = aws.client("sqs", "us-east-1")
    client.send_message(QueueUrl=urls["us-west-2"], MessageBody="hello")

    assert [len(aws.account.region(name).queues["gpuscaler"].messages) for name in urls] == [0, 1]
