"""Launch templates: ec2's Create, Describe and Delete calls."""

import re
from collections.abc import Mapping
from typing import Any, Final

from gpuscaler.embedded.aws.region import Region
from gpuscaler.embedded.aws.state import Template
from gpuscaler.embedded.aws.wire.errors import AwsError
from gpuscaler.embedded.aws.wire.filters import matches
from gpuscaler.embedded.aws.wire.pages import page
from gpuscaler.embedded.aws.wire.writing import to_datetime

_NAME: Final = re.compile(r"[a-zA-Z0-9()./_-]{3,128}")


def find_template(region: Region, wanted: Mapping[str, Any]) -> Template:
    """The template with the given ``LaunchTemplateId`` or ``LaunchTemplateName``."""
    ident, name = wanted.get("LaunchTemplateId"), wanted.get("LaunchTemplateName")
    for template in region.templates.values():
        if template.id == ident or (ident is None and template.name == name):
            return template
    if ident is not None:
        raise AwsError("InvalidLaunchTemplateId.NotFound", f"The specified launch template, with template ID {ident}, does not exist.")
    raise AwsError(
        "InvalidLaunchTemplateName.NotFoundException", f"The specified launch template, with template name {name}, does not exist."
    )


def _create(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    name = params["LaunchTemplateName"]
    if not _NAME.fullmatch(name):
        raise AwsError(
            "InvalidLaunchTemplateName.MalformedException",
            "A launch template name must be between 3 and 128 characters, and may contain letters, numbers, and the following characters: "
            "- ( ) . / _.",
        )
    if any(template.name == name for template in region.templates.values()):
        raise AwsError("InvalidLaunchTemplateName.AlreadyExistsException", f"Launch template name already in use: {name}")
    tags = [
        tag
        for specification in params.get("TagSpecifications", [])
        if specification.get("ResourceType") == "launch-template"
        for tag in specification["Tags"]
    ]
    template = Template(region.identifier("lt"), name, region.now, [params["LaunchTemplateData"]], tags=tags)
    region.templates[template.id] = template
    return {"LaunchTemplate": _describe_template(region, template)}


def _create_version(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    template = find_template(region, params)
    data = dict(params["LaunchTemplateData"])
    if (source := params.get("SourceVersion")) is not None:
        data = {**template.versions[template.version(source) - 1], **data}
    template.versions.append(data)
    return {"LaunchTemplateVersion": _describe_version(region, template, len(template.versions))}


def _modify(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    template = find_template(region, params)
    if (default := params.get("DefaultVersion")) is not None:
        template.default = template.version(default)
    return {"LaunchTemplate": _describe_template(region, template)}


def _delete(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    template = find_template(region, params)
    del region.templates[template.id]
    return {"LaunchTemplate": _describe_template(region, template)}


def _describe(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if ids := params.get("LaunchTemplateIds"):
        templates = [find_template(region, {"LaunchTemplateId": ident}) for ident in ids]
    elif names := params.get("LaunchTemplateNames"):
        templates = [find_template(region, {"LaunchTemplateName": name}) for name in names]
    else:
        templates = list(region.templates.values())

    def passes(template: Template) -> bool:
        fields = {
            "launch-template-name": lambda: (template.name,),
            "tag": lambda: [f"{tag['Key']}={tag['Value']}" for tag in template.tags],
            "tag-key": lambda: [tag["Key"] for tag in template.tags],
        }
        return matches(params.get("Filters", ()), fields)

    shown, more = page([template for template in templates if passes(template)], params, size="MaxResults", default=200, most=200)
    return {"LaunchTemplates": [_describe_template(region, template) for template in shown], **more}


def _describe_versions(region: Region, params: dict[str, Any]) -> dict[str, Any]:
    if "LaunchTemplateId" in params or "LaunchTemplateName" in params:
        template = find_template(region, params)
        wanted = params.get("Versions")
        numbers = [template.version(word) for word in wanted] if wanted else range(len(template.versions), 0, -1)
        versions = [_describe_version(region, template, number) for number in numbers]
    else:
        # Across templates only the two words are allowed.
        words = params.get("Versions", [])
        if not words or not set(words) <= {"$Latest", "$Default"}:
            raise AwsError("MissingParameter", "The request must contain the parameter LaunchTemplateName or LaunchTemplateId")
        versions = [_describe_version(region, template, template.version(word)) for template in region.templates.values() for word in words]
    shown, more = page(versions, params, size="MaxResults", default=200, most=200)
    return {"LaunchTemplateVersions": shown, **more}


def _describe_template(region: Region, template: Template) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "CreateTime": to_datetime(template.created_at),
        "CreatedBy": f"arn:aws:iam::{region.account}:root",
        "DefaultVersionNumber": template.default,
        "LatestVersionNumber": len(template.versions),
        "Tags": template.tags,
    }


def _describe_version(region: Region, template: Template, number: int) -> dict[str, Any]:
    return {
        "LaunchTemplateId": template.id,
        "LaunchTemplateName": template.name,
        "VersionNumber": number,
        "CreateTime": to_datetime(template.created_at),
        "CreatedBy": f"arn:aws:iam::{region.account}:root",
        "DefaultVersion": number == template.default,
        "LaunchTemplateData": template.versions[number - 1],
    }


OPERATIONS: Final = {
    "CreateLaunchTemplate": _create,
    "CreateLaunchTemplateVersion": _create_version,
    "ModifyLaunchTemplate": _modify,
    "DeleteLaunchTemplate": _delete,
    "DescribeLaunchTemplates": _describe,
    "DescribeLaunchTemplateVersions": _describe_versions,
}
