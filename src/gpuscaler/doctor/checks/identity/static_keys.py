"""Credentials that anyone may read or that never expire, where the cloud offers an identity instead. No value is shown."""

import re
from collections.abc import Iterable, Iterator

from gpuscaler.doctor.checks.checking import WORKLOADS, Check
from gpuscaler.doctor.checks.identity.credentials import AWS_ID, AWS_SECRET, AZURE_SECRET, SECRETS, STORAGE_KEY, credential_of
from gpuscaler.doctor.checks.identity.pod_identities import associated
from gpuscaler.doctor.checks.programs import NODE_AUTOSCALERS, account_of, flags_of, programs, workloads
from gpuscaler.doctor.documents import TEMPLATES, Document, containers_of
from gpuscaler.doctor.evidence import Evidence
from gpuscaler.doctor.findings import CRITICAL, INFO, WARNING, Finding, Fix

#: Names of variables and flags whose value is a credential. Names that only end with SECRET often hold the name of one.
_NAMES = re.compile(
    r"(password|passwd|client_?secret|secret_?key|secret_?access_?key|account_?key|storage_?key|storage_?access_?key|connection_?string|api_?key|private_?key|"
    r"(auth|access|api|bot|bearer)token|(^|_)token)$"
)
#: Values that are credentials under any name.
_VALUES = re.compile(
    r"-----BEGIN [A-Z ]*PRIVATE KEY-----|AccountKey=[A-Za-z0-9+/]{40,}|[?&]sig=[A-Za-z0-9%]{30,}|://[^/\s:@]+:[^/\s@$]{3,}@|"
    r"aws_secret_access_key\s*=\s*[A-Za-z0-9/+]{40}"
)
#: A value that can be a password. Shorter ones are mostly names and switches.
_WORD = re.compile(r"\S{8,1024}")
#: Values that are not credentials under any name: switches, numbers, paths, references to variables and placeholders.
_HARMLESS = re.compile(
    r"(true|false|on|off|yes|no|<.*|none|null|empty|dummy|\d+|[./~].*|.*\.(key|pem|crt)|file://.*|https?://[^@]*|)",
    re.IGNORECASE,
)
#: A reference to a variable, within one line. Looked for on its own: a pattern that has it between two `.*` tries each pair of places.
_REFERENCE = re.compile(r"\$[({]")
#: Tokens that JupyterHub issues to each pod that it starts. They have the rights of one user, and are taken back when the pod ends.
_ISSUED = ("JUPYTERHUB_API_TOKEN", "JPY_API_TOKEN")
_PUBLIC = re.compile(r"https?://(gist\.github(usercontent)?\.com|pastebin\.com|raw\.githubusercontent\.com)/")
_PARAMETERS = re.compile(r"param|credential|secret|config")
_RENEW = "and renew it: everyone who may read the object has read it, and its history keeps it"
#: Labels of nodes by the service that made them, with the identity that it offers.
_IDENTITIES = {
    "eks.amazonaws.com/": ("aws", "EKS Pod Identity, or a role of its ServiceAccount (IRSA)"),
    "alpha.eksctl.io/": ("aws", "EKS Pod Identity, or a role of its ServiceAccount (IRSA)"),
    "kubernetes.azure.com/": ("azure", "workload identity of AKS"),
    "cloud.google.com/gke-": ("gcp", "Workload Identity Federation for GKE"),
}
_CLOUD_OF = {"AWS": "aws", "Azu": "azure", "key": "azure", "Ali": "alibaba"}
#: Keys that only Azure takes; programs have keys of AWS for other storage with the same API, too.
_OF_AZURE = (AZURE_SECRET, STORAGE_KEY)
_ROLE = "eks.amazonaws.com/role-arn"


def find_plain_credentials(evidence: Evidence) -> Iterable[Finding]:
    """D27: credentials in variables and on command lines of pods, and in ConfigMaps."""
    for document, template in workloads(evidence):
        start = ".".join(TEMPLATES[document.kind])
        for path, container in containers_of(template):
            where = f"{start}.{path}" if start else path
            variables = container.parts("env")
            names = frozenset(variable.text("name") for variable in variables)
            for variable in variables:
                name = variable.text("name")
                if _is_credential(name, variable.text("value"), names):
                    yield _plain(document, f"{where}.env[{name}]")
            for name, values in flags_of((*container.texts("command"), *container.texts("args"))).items():
                if any(_is_credential(name, value) for value in values):
                    yield _plain(document, f"{where}.args[--{name}]")
                elif any(_PUBLIC.match(value) for value in values) and _PARAMETERS.search(name.lower()):
                    yield _public(document, f"{where}.args[--{name}]")
    for document in evidence.of("ConfigMap"):
        data = document.pairs("data")
        for key, value in data.items():
            # Texts with spaces are descriptions and files.
            if _VALUES.search(value) or (_WORD.fullmatch(value.strip()) and _is_credential(key, value, frozenset(data))):
                yield _plain(document, f"data[{key}]")


def _is_credential(name: str, value: str, names: frozenset[str] = frozenset()) -> bool:
    if _VALUES.search(value):
        return True
    if name in _ISSUED:
        return False
    named = credential_of(name, names) in SECRETS or _NAMES.search(name.lower().replace("-", "_"))
    return bool(named) and not _is_harmless(value.strip())


def _is_harmless(value: str) -> bool:
    return _HARMLESS.fullmatch(value) is not None or ("\n" not in value and _REFERENCE.search(value) is not None)


def _plain(document: Document, field: str) -> Finding:
    return Finding(
        "D27",
        WARNING,
        document.title,
        field,
        "a credential as plain text",
        "a reference to a Secret, or an identity of the cloud without any key",
        "everyone who may read the object, its file or its history has the credential",
        Fix(advice=f"put it into a Secret and refer to that with secretKeyRef, or use an identity of the cloud, {_RENEW}"),
        document.place,
    )


def _public(document: Document, field: str) -> Finding:
    return Finding(
        "D27",
        CRITICAL,
        document.title,
        field,
        "a public URL of parameters",
        "a file from a Secret, or no such parameters",
        "parameters of a cluster contain its credentials, and everyone who knows the URL has them",
        Fix(advice="delete what the URL shows, renew all credentials in it, and mount the file from a Secret"),
        document.place,
    )


def find_static_keys(evidence: Evidence) -> Iterable[Finding]:
    """D27: keys that never expire, where the cluster offers an identity; and keys that take precedence over a role."""
    offered = dict(_offered(evidence))
    secrets = {(item.namespace or "default", item.name): item for item in evidence.of("Secret")}
    autoscalers = {program.workload.key for program in programs(evidence) if program.name in NODE_AUTOSCALERS}
    roles = {(item.namespace or "default", item.name) for item in evidence.of("ServiceAccount") if _ROLE in item.annotations}
    roles |= associated(evidence)
    for document, template in workloads(evidence):
        namespace = document.namespace or "default"
        for path, container in containers_of(template):
            given = _credentials(namespace, container, secrets)
            secret = next((credential for credential in given if credential in SECRETS), "")
            field = ".".join((*TEMPLATES[document.kind], path, "env"))
            identity = offered.get(_CLOUD_OF.get(secret[:3], ""), "")
            if (namespace, account_of(template)) in roles and {AWS_ID, AWS_SECRET} <= given:
                yield _masking(document, field)
            elif secret and (document.key in autoscalers or secret in _OF_AZURE):
                yield _static(document, field, secret, identity)


def _offered(evidence: Evidence) -> Iterator[tuple[str, str]]:
    """The identities that the services of the nodes offer, by cloud."""
    for node in evidence.of("Node"):
        for label in node.labels:
            for start, (cloud, identity) in _IDENTITIES.items():
                if label.startswith(start):
                    yield cloud, identity


def _credentials(namespace: str, container: Document, secrets: dict[tuple[str, str], Document]) -> set[str]:
    """The credentials that a container gets in variables from Secrets."""
    names = {variable.text("name") for variable in container.parts("env") if _is_given(namespace, variable, secrets)}
    for source in container.parts("envFrom"):
        secret = secrets.get((namespace, source.text("secretRef", "name")), Document({}))
        names |= {str(key) for field in ("data", "stringData") for key in secret.part(field).data}
    beside = frozenset(names)
    return {credential for name in names if (credential := credential_of(name, beside))}


def _is_given(namespace: str, variable: Document, secrets: dict[tuple[str, str], Document]) -> bool:
    """Whether ``variable`` gets a value from a Secret: charts refer to a key of a Secret that is optional, and mostly does not exist."""
    reference = variable.part("valueFrom", "secretKeyRef")
    secret = secrets.get((namespace, reference.text("name")))
    exists = secret is not None and any(reference.text("key") in secret.part(field).data for field in ("data", "stringData"))
    return bool(reference.data) and (exists or not reference.flag("optional"))


def _masking(document: Document, field: str) -> Finding:
    return Finding(
        "D27",
        WARNING,
        document.title,
        field,
        "a key of AWS, although its ServiceAccount has a role",
        "no key: the role is enough",
        "libraries of AWS prefer the key, so that the role and its rights are never used",
        Fix(advice="remove the variables of the key, then delete the key in IAM"),
        document.place,
    )


def _static(document: Document, field: str, secret: str, identity: str) -> Finding:
    return Finding(
        "D27",
        WARNING if identity else INFO,
        document.title,
        field,
        f"{secret} from a Secret, which does not expire by itself",
        identity or "an identity of the cloud for its ServiceAccount, if the cluster publishes its issuer of tokens",
        "a key that leaks is used by others until an operator notices",
        Fix(advice="give its ServiceAccount an identity, remove the variables, and delete the key in the cloud"),
        document.place,
    )


def find_lasting_tokens(evidence: Evidence) -> Iterable[Finding]:
    """D27: Secrets with tokens of ServiceAccounts, which never expire."""
    for secret in evidence.of("Secret"):
        if secret.text("type") == "kubernetes.io/service-account-token":
            yield Finding(
                "D27",
                INFO,
                secret.title,
                "type",
                "a token of a ServiceAccount, which never expires",
                "tokens with an end: projected into pods by the kubelet, or from kubectl create token",
                "everyone who reads the Secret once may act as the ServiceAccount for ever; since 1.24 Kubernetes makes none itself",
                Fix(advice="let its users take a token from kubectl create token, then delete the Secret"),
                secret.place,
            )


CHECKS = (
    Check("D27", "credentials as plain text", (), find_plain_credentials, reads=(*WORKLOADS, "ConfigMap"), on_files=True),
    Check("D27", "keys of clouds that do not expire", ("ServiceAccount", "Secret"), find_static_keys, reads=WORKLOADS),
    Check("D27", "tokens of ServiceAccounts that do not expire", ("Secret",), find_lasting_tokens, on_files=True),
)
