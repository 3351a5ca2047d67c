"""Keys of encrypted disks that EC2 Auto Scaling may not use, before a launch fails and after.

Source: EC2 Auto Scaling user guide, "Required AWS KMS key policy for use with encrypted volumes", 2026.
"""

from collections.abc import Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpuscaler.doctor.checks.aws.account import TEMPLATE, AwsGroup, aws, aws_check, scaled_groups
from gpuscaler.doctor.documents import Document
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, Finding, Fix, Unchecked

#: What EC2 Auto Scaling does with a key, which a grant allows it; and without which of it no disk can be made.
GRANTED = (
    "Encrypt",
    "Decrypt",
    "ReEncryptFrom",
    "ReEncryptTo",
    "GenerateDataKey",
    "GenerateDataKeyWithoutPlaintext",
    "DescribeKey",
    "CreateGrant",
)
_NEEDED = frozenset({"CreateGrant", "Decrypt", "DescribeKey", "GenerateDataKeyWithoutPlaintext"})
_CLIENT_ERROR = "Client.InternalError"
_EFFECT = "every machine ends while it starts, since its encrypted disk cannot be made"
_EXPECTED = "a grant of the key for the service-linked role of EC2 Auto Scaling"


def find_key_errors(evidence: Evidence) -> Iterator[Finding | Unchecked]:
    """D23: keys that EC2 Auto Scaling may not use, and launches that failed in such a way."""
    defaults = {item.text("Region"): item for item in evidence.of("aws/DiskEncryption")}
    keys = {(item.text("Region"), item.text("Name"), item.text("Role")): item for item in evidence.of("aws/Key")}
    encrypted = {(item.text("Region"), item.text("ImageId")) for item in evidence.of("aws/Image") if _is_encrypted(item)}
    failed = _failed_launches(evidence)
    unread: dict[str, str] = {}
    for group in scaled_groups(evidence):
        names = dict.fromkeys(_keys_of(group, defaults.get(group.region, Document({}))))
        used = [keys[key] for name in names if (key := (group.region, name, group.document.text("ServiceLinkedRoleARN"))) in keys]
        bad = [finding for key in used if (finding := _unusable(group, key)) is not None]
        forbidden = [key for key in used if _is_forbidden(key, _role(group))]
        if bad:
            yield bad[0]
        elif forbidden:
            yield Finding("D23", CRITICAL, group.title, "KmsKeyId", _names(forbidden), _EXPECTED, _EFFECT, _grants(group, forbidden))
        elif message := failed.get(group.key):
            yield Finding("D23", CRITICAL, group.title, "KmsKeyId", message, _EXPECTED, _EFFECT, _grants(group, used))
        unread |= {key.text("Name"): key.text("Unread") for key in used if key.text("Unread") and not _is_allowed(key, _role(group))}
        for option in group.options:
            if (group.region, option.document.text("Image")) in encrypted and not option.document.flag("RootHasKey"):
                unread[f"of the disk of image {option.document.text('Image')}"] = "the keys of images' snapshots are not read"
    for name, reason in unread.items():
        yield Unchecked("D23", f"the key {name}", reason)


def _failed_launches(evidence: Evidence) -> dict[tuple[str, str], str]:
    """The message of each group whose newest launch failed as it does when a key may not be used."""
    newest: dict[tuple[str, str], Document] = {}
    for activity in evidence.of("aws/ScalingActivity"):
        key = (activity.text("Region"), activity.text("AutoScalingGroupName"))
        if activity.text("Description").startswith("Launching") and activity.has("EndTime"):
            newest[key] = max(newest.get(key, activity), activity, key=lambda item: item.number("StartTime") or 0.0)
    return {
        key: activity.text("StatusMessage")
        for key, activity in newest.items()
        if _CLIENT_ERROR in activity.text("StatusMessage") and activity.text("StatusCode") in ("Failed", "Cancelled")
    }


def _is_encrypted(image: Document) -> bool:
    """Whether an image's own disk is encrypted, with the key of its snapshot."""
    return any(mapping.flag("Ebs", "Encrypted") for mapping in image.parts("BlockDeviceMappings"))


def _keys_of(group: AwsGroup, region: Document) -> Iterator[str]:
    """The names of the keys of the group's disks: those that its template names, and the region's key for the others."""
    for option in group.options:
        yield from option.document.texts("DiskKeys")
        if option.document.flag("DefaultKey") or (region.flag("ByDefault") and not option.document.flag("RootHasKey")):
            yield region.text("KmsKeyId")


def _names(keys: list[Document]) -> str:
    return f"{', '.join(key.text('Arn') or key.text('Name') for key in keys)}, whose policy and grants do not allow it"


def _unusable(group: AwsGroup, key: Document) -> Finding | None:
    """A finding if the key cannot be used at all."""
    state, name = key.text("KeyState"), key.text("Arn") or key.text("Name")
    wrong_kind = key.text("KeySpec") not in ("", "SYMMETRIC_DEFAULT")
    if state in ("", "Enabled", "Creating", "Updating") and not wrong_kind:
        return None
    enable = aws("kms", "enable-key", "--key-id", name, region=group.region)
    keep = aws("kms", "cancel-key-deletion", "--key-id", name, region=group.region)
    commands = {"Disabled": (enable,), "PendingDeletion": (keep, enable)}.get(state, ())
    seen = f"{name}, which is not symmetric" if wrong_kind else f"{name}, whose state is {state}"
    advice = "or name another key in a new version of the launch template (or as the region's default for disks)"
    return Finding("D23", CRITICAL, group.title, "KmsKeyId", seen, "an enabled symmetric key", _EFFECT, Fix(commands, advice))


def _is_forbidden(key: Document, role: str) -> bool:
    """Whether the key's policy and grants, both read, do not allow ``role`` what it needs."""
    return key.text("KeyManager") == "CUSTOMER" and key.has("Policy") and key.has("Grants") and not _is_allowed(key, role)


def _is_allowed(key: Document, role: str) -> bool:
    """Whether what was read of the key's policy and grants allows ``role`` what it needs.

    The part of a policy for the whole account allows nothing here: it leaves the decision to IAM, and the role's own policy names no keys.
    """
    allowed: set[str] = set()
    for grant in key.parts("Grants"):
        # A grant with constraints is for one disk.
        if grant.text("GranteePrincipal") == role and not grant.has("Constraints"):
            allowed |= set(grant.texts("Operations"))
    denied: set[str] = set()
    for statement in _statements(key.value("Policy", "Statement")):
        actions = {action for action in _NEEDED if _has_action(statement, action)}
        if statement.text("Effect") == "Allow" and _names_role(statement, role) and _conditions_hold(statement, role):
            allowed |= actions
        elif statement.text("Effect") == "Deny" and _names_role(statement, role) and not statement.value("Condition"):
            denied |= actions
    return allowed >= _NEEDED and not denied


def _statements(value: Any) -> list[Document]:
    return [Document(item) for item in _listed(value) if isinstance(item, Mapping)]


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [] if value is None else [value]


def _has_action(statement: Document, action: str) -> bool:
    wanted = f"kms:{action}".lower()

    def among(field: str) -> bool:
        return any(isinstance(item, str) and fnmatchcase(wanted, item.lower()) for item in _listed(statement.value(field)))

    return not among("NotAction") if statement.has("NotAction") else among("Action")


def _names_role(statement: Document, role: str) -> bool:
    def among(field: str) -> bool:
        value = statement.value(field)
        return any(item in ("*", role) for item in _listed(value.get("AWS") if isinstance(value, Mapping) else value))

    return not among("NotPrincipal") if statement.has("NotPrincipal") else among("Principal")


def _conditions_hold(statement: Document, role: str) -> bool:
    """Whether the statement's conditions may hold when EC2 uses the key for ``role``; those that are not known here may."""
    for operator, pairs in statement.part("Condition").data.items():
        for key, value in pairs.items() if isinstance(pairs, Mapping) else ():
            patterns = [item for item in _listed(value) if isinstance(item, str)]
            positive = "Not" not in str(operator) and str(operator).removesuffix("IfExists").endswith(("Equals", "Like"))
            name = str(key).lower()
            if name == "aws:principalarn" and any(fnmatchcase(role, item) for item in patterns) != positive:
                return False
            if name == "kms:calleraccount" and positive and not any(f":{item}:" in role for item in patterns):
                return False
            if name == "kms:viaservice" and positive and not any(item.startswith(("ec2.", "autoscaling.", "*")) for item in patterns):
                return False
    return True


def _role(group: AwsGroup) -> str:
    return group.document.text("ServiceLinkedRoleARN") or _service_role(group.document.text("AutoScalingGroupARN"))


def _grants(group: AwsGroup, keys: list[Document]) -> Fix:
    role = _role(group)
    own = [key.text("Arn") or key.text("Name") for key in keys if key.text("KeyManager") in ("", "CUSTOMER")]
    named = own or list(dict.fromkeys(key for option in group.options for key in option.document.texts("DiskKeys")))
    commands = tuple(
        aws("kms", "create-grant", "--key-id", key, "--grantee-principal", role, "--operations", *GRANTED, region=group.region)
        for key in named
    )
    return Fix(commands, "" if commands else f"allow {role} to use the key of the image's disks (`aws kms create-grant`)")


def _service_role(arn: str) -> str:
    """The role that EC2 Auto Scaling uses by default in the account of a group's ARN."""
    parts = [*arn.split(":"), *[""] * 5]
    name = "aws-service-role/autoscaling.amazonaws.com/AWSServiceRoleForAutoScaling"
    return f"arn:{parts[1] or 'aws'}:iam::{parts[4] or 'ACCOUNT'}:role/{name}"


CHECKS = (
    aws_check(
        "D23",
        "keys of encrypted disks",
        (TEMPLATE, "aws/DiskEncryption", "aws/Key", "aws/Image", "aws/ScalingActivity"),
        find_key_errors,
    ),
)
