"""What no report shows of files: credentials, which people write under many names and into all sorts of fields."""

import re
from collections.abc import Iterable

#: Names of variables, keys and flags whose values are credentials, whatever the values look like.
_NAME = re.compile(
    r"(passw\w*|pass|pwd|passphrase|secret|token|credentials?|(api|access|account|private|secret|storage|auth|signing|encryption)[_.-]?key|"
    r"connection[_-]?string|dsn|pin)$",
    re.IGNORECASE,
)
#: A name with its value, in YAML, JSON and in command lines.
_PAIR = re.compile(
    r"(?<![\w.-])(?P<name>-{0,2}\w[\w.-]{0,200})['\"]?(?P<between>\s{0,9}[:=]\s{0,9}|['\",\s]{1,4})(?=['\"]?(?P<value>[^\s'\"{}\[\],|>#]+))"
)
#: Values that are no credentials.
_HARMLESS = re.compile(r"(true|false|yes|no|on|off|null|none|~|[$<].*)", re.IGNORECASE)
_VARIABLE = re.compile(r"\bname['\"]?\s?:\s?['\"]?([\w.-]{1,200})")
_VALUE_OF_VARIABLE = re.compile(r"\bvalue['\"]?\s?:")
_FLAG_ALONE = re.compile(r"-\s+['\"]?--?([\w.-]{1,200})['\"]?\s*$")
#: User and password within a URL.
_IN_URL = re.compile(r"(://)[^/\s:@'\"]{1,200}:[^/\s@'\"]{1,200}@")
_VALUE = re.compile(r"-----BEGIN |\bAKIA[A-Z0-9]{16}|AccountKey=|[?&]sig=|\beyJ[A-Za-z0-9_-]{10}|aws_secret_access_key\s?=")
#: What may be random: base64, or characters that a generator chose.
_LONG = re.compile(r"[A-Za-z0-9+/=]{20,}")
#: What a file with credentials contains somewhere: as many hints as possible, since only lines around a change depend on them.
_HINT = re.compile(
    r"secret|passw|pass\b|_pass|pwd|token|credential|private|dsn|[a-z]_?-?key\b|connection_?-?string|auth|\bpin\b|sig=|://[^/\s]*@|-----BEGIN",
    re.IGNORECASE,
)
_SECRET = re.compile(r"kind['\"]?\s?:\s?['\"]?Secret\b")
#: Lines of a Secret that are none of its values.
_NO_VALUE = re.compile(r"\s*(-\s+)?(apiVersion|kind|namespace|name)\s?:")


def is_credential_name(name: str) -> bool:
    """Whether the value of a variable, key or flag with this name is a credential."""
    return _NAME.search(name) is not None


def is_guarded(text: str) -> bool:
    """Whether a file with ``text`` may have credentials, so that no report shows more lines of it than those that change."""
    return _HINT.search(text) is not None or _is_random(text)


def has_secret(text: str) -> bool:
    """Whether ``text`` has a Secret."""
    return _SECRET.search(text) is not None


def may_be_in_secret(line: str) -> bool:
    """Whether a line of a Secret may have its values."""
    return _NO_VALUE.match(line) is None


def shows_credential(line: str, beside: Iterable[str]) -> bool:
    """Whether a line has a credential, whose name may be on one of the lines ``beside`` it."""
    if _IN_URL.search(line) or _VALUE.search(line) or _is_random(line):
        return True
    for pair in _PAIR.finditer(line):
        certain = pair["between"].strip(" '\"") in (":", "=") or pair["name"].startswith("-")
        if certain and is_credential_name(pair["name"]) and not _HARMLESS.fullmatch(pair["value"]):
            return True
    near = (line, *beside)
    if _VALUE_OF_VARIABLE.search(line) and any(is_credential_name(match[1]) for text in near for match in _VARIABLE.finditer(text)):
        return True
    return any(is_credential_name(match[1]) for text in near if (match := _FLAG_ALONE.search(text)))


def without_credentials(text: str) -> str:
    """``text`` without the users and passwords in its URLs."""
    return _IN_URL.sub(r"\1...@", text)


def _is_random(text: str) -> bool:
    kinds = (str.isdigit, str.isupper, str.islower)
    return any(all(any(map(kind, match[0])) for kind in kinds) for match in _LONG.finditer(text))
