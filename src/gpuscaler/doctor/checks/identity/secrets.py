"""Values of Secrets that are not what the cloud expects. Findings say only what is wrong: never a value, a part of it, or its length."""

import re
from collections.abc import Iterable
from typing import NamedTuple

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.identity.credentials import (
    AWS_ID,
    AWS_SECRET,
    AZURE_SECRET,
    credential_of,
    decode_base64,
    has_shape,
    is_encoded_twice,
    is_guid,
    is_unencoded,
)
from gpuscaler.doctor.checks.programs import workloads
from gpuscaler.doctor.commands import rewrite_secret, swap_in_secret
from gpuscaler.doctor.documents import Document, containers_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding, Fix

#: Secrets of Helm are large, and hold releases only.
_HELM = "helm.sh/release.v1"
_KEY = re.compile(r"[-._a-zA-Z0-9]+")
_STRIP = "tr -d '[:space:]'"
_UNQUOTE = "tr -d '\"'\"'\""
_RESTART = "restart the pods that read it: variables are read only when a container starts"


class _Mistake(NamedTuple):
    seen: str
    expected: str
    #: The filters that mend the value; None if none do.
    filters: tuple[str, ...] | None
    decoded: bool = True
    severity: str = CRITICAL


def find_malformed_values(evidence: Evidence) -> Iterable[Finding]:
    """D26: values that are not base64, empty, encoded twice or not at all, swapped, or with spaces or quotes around them."""
    used = _used_as(evidence)
    for secret in evidence.of("Secret"):
        if secret.text("type") == _HELM:
            continue
        data, plain = secret.pairs("data"), secret.pairs("stringData")
        names = frozenset((*data, *plain))
        credentials = {
            key: credential
            for key in names
            if (credential := credential_of(key, names) or used.get((secret.namespace, secret.name, key), ""))
        }
        values = {key: _text(encoded) for key, encoded in data.items() if key in credentials} | plain
        swapped = _swapped(values, credentials)
        if swapped:
            yield _of_swapped(secret, *swapped)
        for key, encoded in sorted(data.items()):
            if key not in swapped and (mistake := _mistake_in_data(encoded, credentials.get(key, ""))):
                yield _finding(secret, f"data[{key}]", key, credentials.get(key, ""), mistake)
        for key, value in sorted(plain.items()):
            if key in credentials and key not in swapped and (mistake := _mistake_in(value, credentials[key])):
                yield _finding(secret, f"stringData[{key}]", key, credentials[key], mistake)


def _used_as(evidence: Evidence) -> dict[tuple[str, str, str], str]:
    """Which credential pods take keys of Secrets for, by namespace, Secret and key."""
    used: dict[tuple[str, str, str], str] = {}
    for document, template in workloads(evidence):
        for _, container in containers_of(template):
            for variable in container.parts("env"):
                reference = variable.part("valueFrom", "secretKeyRef")
                if credential := credential_of(variable.text("name")) if reference.data else "":
                    used[document.namespace, reference.text("name"), reference.text("key")] = credential
    return used


def _text(encoded: str) -> str:
    decoded = decode_base64(encoded)
    return "" if decoded is None else decoded.decode("latin-1")


def _swapped(values: dict[str, str], credentials: dict[str, str]) -> tuple[str, str] | tuple[()]:
    """The keys whose values are those of each other."""
    key_id = next((key for key, credential in credentials.items() if credential == AWS_ID), None)
    secret = next((key for key, credential in credentials.items() if credential == AWS_SECRET), None)
    if key_id is None or secret is None or not has_shape(values.get(secret, "").strip(), AWS_ID):
        return ()
    return (key_id, secret) if has_shape(values.get(key_id, "").strip(), AWS_SECRET) else ()


def _of_swapped(secret: Document, key_id: str, key: str) -> Finding:
    kept = _why_kept(secret)
    usable = not kept and all(name in secret.pairs("data") and _KEY.fullmatch(name) for name in (key_id, key))
    return Finding(
        "D26",
        CRITICAL,
        secret.title,
        f"data[{key_id}], data[{key}]",
        "each has the value of the other",
        f"an {AWS_ID}, and an {AWS_SECRET}",
        "the cloud refuses all requests",
        Fix((swap_in_secret(secret, key_id, key),) if usable else (), kept or _RESTART),
        secret.place,
    )


def _mistake_in_data(encoded: str, credential: str) -> _Mistake | None:
    if decode_base64(encoded) is None:
        return _Mistake("text that is not base64", "base64 in data, or the text itself in stringData", None)
    if not credential:
        return None
    if is_unencoded(encoded, credential):
        return _Mistake("the value itself, not its base64", f"the base64 of the {credential}", (_STRIP,), decoded=False)
    return _mistake_in(_text(encoded), credential)


def _mistake_in(value: str, credential: str) -> _Mistake | None:
    expected = f"the {credential}, and nothing else"
    bare = value.strip()
    if not bare:
        return _Mistake("no value", expected, None)
    if is_encoded_twice(bare, credential):
        return _Mistake("base64 of base64", expected, (_STRIP, "base64 --decode", _STRIP))
    if bare[0] in "\"'" and bare[-1] == bare[0] and len(bare) > 1:
        return _Mistake("a value in quotes", expected, (_STRIP, _UNQUOTE))
    if bare.startswith("<") and bare.endswith(">"):
        return _Mistake("a placeholder in angle brackets", expected, None)
    if value != bare:
        what = "a newline at the end" if bare == value.rstrip("\r\n") else "spaces or newlines around the value"
        return _Mistake(what, expected, (_STRIP,))
    if credential == AZURE_SECRET and is_guid(bare):
        return _Mistake(
            "a GUID, as the ID of a client secret is", "the value of the client secret, which Azure shows once", None, severity=WARNING
        )
    if credential == AWS_ID and has_shape(bare, AWS_SECRET):
        return _Mistake(f"what looks like an {AWS_SECRET}", expected, None)
    if credential == AWS_SECRET and has_shape(bare, AWS_ID):
        return _Mistake(f"what looks like an {AWS_ID}", expected, None)
    return None


def _finding(secret: Document, field: str, key: str, credential: str, mistake: _Mistake) -> Finding:
    kept = _why_kept(secret)
    commands: tuple[str, ...] = ()
    if mistake.filters is not None and not kept and field.startswith("data") and _KEY.fullmatch(key):
        commands = (rewrite_secret(secret, key, *mistake.filters, decoded=mistake.decoded),)
    by_hand = f"set it again: kubectl create secret generic with --from-file={key}=FILE, where FILE holds the value without a newline"
    return Finding(
        "D26",
        mistake.severity,
        secret.title,
        field,
        mistake.seen,
        mistake.expected,
        "the cloud refuses all requests, often with a message about rights or a wrong signature"
        if credential
        else "the API server refuses the Secret",
        Fix(commands, kept or (_RESTART if commands else by_hand)),
        secret.place,
    )


def _why_kept(secret: Document) -> str:
    """Why the Secret itself cannot be changed; empty if it can."""
    if secret.flag("immutable"):
        return "the Secret is immutable: create another one with the correct value, and let the pods refer to it"
    for owner in secret.parts("metadata", "ownerReferences"):
        if owner.flag("controller"):
            return f"correct the source: the Secret is made by {owner.text('kind')} {owner.text('name')}"
    return ""


CHECKS = (Check("D26", "values of Secrets with keys of a cloud", ("Secret",), find_malformed_values, reads=WORKLOADS, on_files=True),)
