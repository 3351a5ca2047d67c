"""The keys of encrypted disks: which of them a region uses by default, and who may use those that the account manages itself."""

import json
from collections.abc import Collection, Mapping
from typing import Any, Final

from gpuscaler.clouds.aws.inspecting.inspection import Inspection

Json = Mapping[str, Any]

KEY, ENCRYPTION = "aws/Key", "aws/DiskEncryption"
#: Grants of one key for one role that are read; there is hardly ever more than one.
_GRANTS: Final = 100


def read_keys(region: str, documents: Collection[Json], inspection: Inspection) -> None:
    """Read the region's defaults for disks, and the key of each disk of the groups ``documents`` with the role that launches there."""
    by_default = inspection.read(ENCRYPTION, "ec2", region, "GetEbsEncryptionByDefault")
    first = inspection.read(ENCRYPTION, "ec2", region, "GetEbsDefaultKmsKeyId")
    default, always = str((first or {}).get("KmsKeyId") or ""), bool((by_default or {}).get("EbsEncryptionByDefault"))
    if by_default is not None and first is not None:
        inspection.add(ENCRYPTION, [{"ByDefault": always, "KmsKeyId": default}], Region=region)
    wanted = {
        (str(key), str(document.get("ServiceLinkedRoleARN") or ""))
        for document in documents
        for option in document.get("Options") or ()
        for key in (*option["DiskKeys"], default if option["DefaultKey"] or (always and not option["RootHasKey"]) else "")
        # AWS's own keys are open to everyone in the account, and made when they are first used.
        if key and not key.rpartition(":")[2].startswith("alias/aws/")
    }
    inspection.read_each(sorted(wanted), lambda pair, part: part.add(KEY, [_key(region, *pair, part)], Region=region))


def _key(region: str, name: str, role: str, inspection: Inspection) -> dict[str, Any]:
    """The key ``name`` as a template calls it, and whether ``role`` may use it.

    ``Policy`` and ``Grants``, those for ``role``, are missing if they could not be read; ``Unread`` then says why.
    """
    found: dict[str, Any] = {"Name": name, "Role": role}
    described = inspection.read("", "kms", region, "DescribeKey", KeyId=name)
    unread = inspection.unread.pop("", "")
    if described is None:
        # What does not exist is known; only what could not be asked is not.
        return found | ({"KeyState": "Missing"} if "NotFoundException" in unread else {"Unread": unread})
    metadata = described.get("KeyMetadata") or {}
    fields = ("Arn", "AWSAccountId", "KeyManager", "KeyState", "KeySpec")
    found |= {field: metadata.get(field) for field in fields}
    if metadata.get("KeyManager") != "CUSTOMER":
        return found
    arn = str(metadata.get("Arn") or name)
    policy = inspection.read("", "kms", region, "GetKeyPolicy", KeyId=arn, PolicyName="default")
    grants = inspection.read("", "kms", region, "ListGrants", KeyId=arn, Limit=_GRANTS, **({"GranteePrincipal": role} if role else {}))
    if policy is not None:
        found["Policy"] = _json(policy.get("Policy"))
        if found["Policy"] is None:
            inspection.note("", "its policy is no JSON")
    if grants is not None and not grants.get("Truncated"):
        found["Grants"] = grants.get("Grants") or []
    elif grants is not None:
        inspection.note("", f"the key has more than {_GRANTS} grants")
    if unread := inspection.unread.pop("", ""):
        found["Unread"] = unread
    return found


def _json(text: object) -> Any:
    try:
        return json.loads(text) if isinstance(text, str) else None
    except ValueError:
        return None
