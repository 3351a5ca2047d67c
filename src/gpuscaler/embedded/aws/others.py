"""Calls of the smaller services: STS, the price list.

It also has two optional parts of groups: launch configurations, which are obsolete, and warm pools, in which no machine ever waits
here.
"""

import json
from typing import Any, Final

from gpuscaler.catalogue import InstanceType
from gpuscaler.embedded.aws.autoscaling import groups, lifecycle
from gpuscaler.embedded.aws.hardware import instance_types
from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import AwsError, invalid
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import iso, to_datetime

#: The region whose prices are listed if no filter names one.
_LISTED: Final = "us-east-1"
_ONE_HOUR: Final = "JRTCKXETXF"
_PER_HOUR: Final = "6YS6EN2CT7"


def _identity(region: Region, _params: dict[str, Any]) -> dict[str, Any]:
    return {"UserId": "AIDAGPUSCALER", "Account": region.account, "Arn": f"arn:aws:iam::{region.account}:user/gpuscaler"}


# The price list


def _products(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """On-demand prices of Linux machines; the filters ``instanceType`` and ``regionCode`` narrow them."""
    if params["ServiceCode"] != "AmazonEC2":
        return {"FormatVersion": "aws_v1", "PriceList": []}
    wanted = {item["Field"]: item["Value"] for item in params.get("Filters", ())}
    where = wanted.get("regionCode", _LISTED)
    products = [
        instance_type
        for instance_type in instance_types.in_region(where)
        if wanted.get("instanceType", instance_type.name) == instance_type.name
        and wanted.get("operatingSystem", "Linux") == "Linux"
        and wanted.get("capacitystatus", "Used") == "Used"
        and wanted.get("tenancy", "Shared") == "Shared"
        and wanted.get("preInstalledSw", "NA") == "NA"
    ]
    shown, more = page(products, params, size="MaxResults", default=100, most=100)
    return {"FormatVersion": "aws_v1", "PriceList": [json.dumps(_product(instance_type, where, region)) for instance_type in shown], **more}


def _product(instance_type: InstanceType, where: str, region: Region) -> dict[str, Any]:
    sku = f"SKU{instance_type.name.replace('.', '').upper()}"
    attributes = {
        "instanceType": instance_type.name,
        "regionCode": where,
        "operatingSystem": "Linux",
        "tenancy": "Shared",
        "capacitystatus": "Used",
        "preInstalledSw": "NA",
        "vcpu": str(instance_type.vcpu),
        "gpu": str(instance_type.gpus),
    }
    rate, offer = f"{sku}.{_ONE_HOUR}.{_PER_HOUR}", f"{sku}.{_ONE_HOUR}"
    amount = instance_types.price(instance_type.name, where, "on-demand") * instance_types.per_dollar(where)
    currency = "CNY" if where.startswith("cn-") else "USD"
    price = {"rateCode": rate, "unit": "Hrs", "pricePerUnit": {currency: f"{amount:.10f}"}}
    terms = {"OnDemand": {offer: {"sku": sku, "offerTermCode": _ONE_HOUR, "priceDimensions": {rate: price}}}}
    product = {"productFamily": "Compute Instance", "attributes": attributes, "sku": sku}
    return {"product": product, "serviceCode": "AmazonEC2", "terms": terms, "publicationDate": iso(to_datetime(region.now))}


# Launch configurations


def _configure(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    name = params["LaunchConfigurationName"]
    if name in region.configurations:
        raise AwsError("AlreadyExists", f"Launch Configuration by this name already exists - {name}")
    if "InstanceType" not in params:
        raise invalid("InstanceType must be given")
    region.configurations[name] = {
        "ImageId": "",
        "SecurityGroups": [],
        "BlockDeviceMappings": [],
        **{key: value for key, value in params.items() if key != "InstanceId"},
        "LaunchConfigurationARN": f"arn:aws:autoscaling:{region.name}:{region.account}:launchConfiguration:{region.uuid()}:{name}",
        "CreatedTime": to_datetime(region.now),
    }
    return {}


def _configurations(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    names = params.get("LaunchConfigurationNames")
    configurations = [configuration for name, configuration in region.configurations.items() if not names or name in names]
    shown, more = page(configurations, params, size="MaxRecords", default=50, most=100)
    return {"LaunchConfigurations": shown, **more}


# Warm pools


def _put_warm_pool(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    kept = ("MaxGroupPreparedCapacity", "MinSize", "InstanceReusePolicy")
    configuration = {key: params[key] for key in kept if key in params}
    group.settings["WarmPoolConfiguration"] = {"MinSize": 0, "PoolState": params.get("PoolState", "Stopped"), **configuration}
    group.settings["WarmPoolSize"] = len(group.warm)
    lifecycle.record_history(region, group)
    region.wake(group)
    return {}


def _warm_pool(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    configuration = group.settings.get("WarmPoolConfiguration")
    shown = [lifecycle.describe_member(instance, weighted=False) for instance in group.warm.values()]
    return {"Instances": shown, **({"WarmPoolConfiguration": configuration} if configuration else {})}


def _delete_warm_pool(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    group = groups.find_group(region, params["AutoScalingGroupName"])
    if group.warm and not params.get("ForceDelete"):
        raise AwsError("ResourceInUse", "You cannot delete a warm pool while there are instances in it.")
    for key in ("WarmPoolConfiguration", "WarmPoolSize"):
        group.settings.pop(key, None)
    for instance in list(group.warm.values()):
        lifecycle.terminate(region, instance)
    lifecycle.record_history(region, group)
    return {}


STS: Final = {"GetCallerIdentity": _identity}
PRICING: Final = {"GetProducts": _products}
AUTOSCALING: Final = {
    "CreateLaunchConfiguration": _configure,
    "DeleteWarmPool": _delete_warm_pool,
    "DescribeLaunchConfigurations": _configurations,
    "DescribeWarmPool": _warm_pool,
    "PutWarmPool": _put_warm_pool,
}
