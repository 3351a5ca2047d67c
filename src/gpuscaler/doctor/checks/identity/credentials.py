"""What credentials look like: their names, and the shapes of their values. No value leaves this module."""

import base64
import binascii
import re
from collections.abc import Mapping
from functools import lru_cache
from typing import Final

AWS_ID, AWS_SECRET, AWS_TOKEN = "AWS access key ID", "AWS secret access key", "AWS session token"
AZURE_ID, AZURE_SECRET, AZURE_TENANT, AZURE_SUBSCRIPTION = (
    "Azure client ID",
    "Azure client secret",
    "Azure tenant ID",
    "Azure subscription ID",
)
STORAGE_KEY = "key of an Azure storage account"
ALIBABA_ID, ALIBABA_SECRET = "Alibaba Cloud access key ID", "Alibaba Cloud access key secret"
#: The names of credentials, lower case and without anything but letters and digits: ``aws-access-key-id``, ``AwsAccessKeyId``.
_NAMES: Final[Mapping[str, str]] = {
    "awsaccesskeyid": AWS_ID,
    "awssecretaccesskey": AWS_SECRET,
    "awssecretkey": AWS_SECRET,
    "awssessiontoken": AWS_TOKEN,
    **{f"{prefix}clientid": AZURE_ID for prefix in ("azure", "arm", "aad")},
    **{f"{prefix}clientsecret": AZURE_SECRET for prefix in ("azure", "arm", "aad")},
    **{f"{prefix}tenantid": AZURE_TENANT for prefix in ("azure", "arm", "aad")},
    **{f"{prefix}subscriptionid": AZURE_SUBSCRIPTION for prefix in ("azure", "arm")},
    "azurespappid": AZURE_ID,
    "azurespsecret": AZURE_SECRET,
    "azuresptenantid": AZURE_TENANT,
    "azurestorageaccountkey": STORAGE_KEY,
    "azurestoragekey": STORAGE_KEY,
    "storageaccountkey": STORAGE_KEY,
    "alibabacloudaccesskeyid": ALIBABA_ID,
    "alibabacloudaccesskeysecret": ALIBABA_SECRET,
}
#: Names that are a credential of a cloud only beside all of the others of their set.
_SETS: Final[tuple[Mapping[str, str], ...]] = (
    {"accesskeyid": AWS_ID, "secretaccesskey": AWS_SECRET},
    {"clientid": AZURE_ID, "clientsecret": AZURE_SECRET, "tenantid": AZURE_TENANT},
    {"accesskeyid": ALIBABA_ID, "accesskeysecret": ALIBABA_SECRET},
)
#: The parts of a credential that are secret.
SECRETS: Final = (AWS_SECRET, AWS_TOKEN, AZURE_SECRET, STORAGE_KEY, ALIBABA_SECRET)
GUID = re.compile(r"[0-9a-fA-F]{8}(-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_SHAPES: Final[Mapping[str, re.Pattern[str]]] = {
    AWS_ID: re.compile(r"(AKIA|ASIA)[A-Z0-9]{16}"),
    AWS_SECRET: re.compile(r"[A-Za-z0-9/+]{40}"),
    AZURE_ID: GUID,
    AZURE_TENANT: GUID,
    AZURE_SUBSCRIPTION: GUID,
}
_PRINTABLE = re.compile(r"[\x20-\x7e]+\s*")
#: Shorter texts are base64 by chance.
_LEAST = 16


def credential_of(name: str, names: frozenset[str] = frozenset()) -> str:
    """Which credential a key or variable ``name`` beside ``names`` is; empty if it is none."""
    plain = simple(name)
    if known := _NAMES.get(plain):
        return known
    if any(plain in members for members in _SETS):
        others = _simple_names(names)
        return next((members[plain] for members in _SETS if plain in members and others.issuperset(members)), "")
    return ""


@lru_cache(maxsize=16)
def _simple_names(names: frozenset[str]) -> frozenset[str]:
    return frozenset(map(simple, names))


def simple(name: str) -> str:
    """``name`` in lower case, letters and digits only."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


def has_shape(value: str, credential: str) -> bool:
    """Whether ``value`` certainly is such a credential."""
    shape = _SHAPES.get(credential)
    return shape is not None and shape.fullmatch(value) is not None


def is_guid(value: str) -> bool:
    return GUID.fullmatch(value) is not None


def decode_base64(value: str) -> bytes | None:
    """The bytes that the API would store; None if it refuses the text."""
    try:
        return base64.b64decode(value.replace("\n", "").replace("\r", ""), validate=True)
    except (binascii.Error, ValueError):
        return None


def is_encoded_twice(value: str, credential: str) -> bool:
    """Whether ``value``, which should be the credential, is its base64. Credentials that are base64 decode to bytes that are no text."""
    value = value.strip()
    if len(value) < _LEAST or has_shape(value, credential):
        return False
    inner = decode_base64(value)
    return inner is not None and _PRINTABLE.fullmatch(inner.decode("latin-1")) is not None


def is_unencoded(encoded: str, credential: str) -> bool:
    """Whether ``encoded``, which should be base64, is the credential itself: keys of AWS consist of letters of base64."""
    decoded = decode_base64(encoded)
    text = decoded is not None and _PRINTABLE.fullmatch(decoded.decode("latin-1")) is not None
    return not text and has_shape(encoded.strip(), credential)
