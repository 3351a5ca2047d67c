"""EKS's calls about Pod Identity: which role the pods of a ServiceAccount get."""

from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.wire.errors import AwsError


def _create(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    ident = region.identifier("a")
    kept = ("clusterName", "namespace", "serviceAccount", "roleArn", "targetRoleArn")
    region.associations[ident] = {
        **{key: params[key] for key in kept if key in params},
        "associationId": ident,
        "associationArn": f"arn:aws:eks:{region.name}:{region.account}:podidentityassociation/{params['clusterName']}/{ident}",
    }
    return {"association": region.associations[ident]}


def _list(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    """The associations of a cluster, without their roles. There are no clusters here: one with associations or node groups exists."""
    cluster = params["clusterName"]
    rows = [row for row in region.associations.values() if row["clusterName"] == cluster]
    if not rows and not any(owner == cluster for owner, _ in region.nodegroups):
        raise AwsError("ResourceNotFoundException", f"No cluster found for name: {cluster}.", status=404)
    return {"associations": [_summary(row) for row in rows]}


def _summary(association: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in association.items() if key not in ("roleArn", "targetRoleArn")}


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if params["associationId"] not in region.associations:
        raise AwsError("ResourceNotFoundException", f"No association found with id: {params['associationId']}.", status=404)
    return {"association": region.associations[params["associationId"]]}


OPERATIONS: Final = {
    "CreatePodIdentityAssociation": _create,
    "DescribePodIdentityAssociation": _describe,
    "ListPodIdentityAssociations": _list,
}
