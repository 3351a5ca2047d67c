"""Values that an object of Kubernetes or of another program does not take: words, numbers, quantities."""

import math
import re
from collections.abc import Iterable, Iterator
from typing import Any, Final

from gpuscaler.doctor.findings import CRITICAL, WARNING, Finding
from gpuscaler.doctor.manifests.editing import changed
from gpuscaler.doctor.manifests.fields.programs import FORMER_VALUES
from gpuscaler.doctor.manifests.fields.shapes import Field, Part, is_filled_in_later, parts_of, refusal
from gpuscaler.doctor.manifests.groups.groups import groups_of
from gpuscaler.doctor.manifests.linting import Lint, Mistake
from gpuscaler.doctor.manifests.reading import Manifest, Manifests, Path
from gpuscaler.model.quantities import QuantityError, parse
from gpuscaler.model.similar import Similar, nearest

_TINY = Mistake("L25", WARNING, "no container starts in so little: the unit is missing or wrong")
_EFFECTS: Final = ("NoSchedule", "PreferNoSchedule", "NoExecute")
_BYTES: Final = ("memory", "ephemeral-storage", "storage")
_LEAST_BYTES: Final = 1024
_NUMBER: Final = re.compile(r"[-+]?\d{1,18}")
#: A quantity with a space, or with a unit of a name that Kubernetes does not have: 64GB, 64 Gi, 500MiB.
_SLIP: Final = re.compile(r"([\d.]+)\s*([kKmMgGtTpPeE]?)(i?)[bB]?")


def find_refused_values(manifests: Manifests) -> Iterable[Finding]:
    """L25: values that are not taken."""
    similar = Similar()
    for manifest in manifests.items:
        for part in parts_of(manifest):
            for name, field in part.shape.fields.items():
                value = part.data.get(name)
                if value is None:
                    if field.required and not similar.to(name, part.data.keys(), cutoff=0.8):
                        yield _missing(part, name)
                elif not is_filled_in_later(value):
                    yield from _value(part, (*part.path, name), field, value)


def _mistake(manifest: Manifest, *, sure: bool = True) -> Mistake:
    if sure:
        return Mistake("L25", CRITICAL, refusal(manifest))
    return Mistake("L25", WARNING, f"{refusal(manifest)}, unless its program is newer than this list")


def _missing(part: Part, name: str) -> Finding:
    path = (*part.path, name)
    return _mistake(part.manifest).at(part.manifest, path, seen="missing", expected="a value", advice=f"add {name}")


def _value(part: Part, path: Path, field: Field, value: Any) -> Iterator[Finding]:
    manifest = part.manifest
    if field.values:
        if isinstance(value, str) and value and value not in field.values:
            yield _word(manifest, path, value, field.values)
    elif field.holds == "int":
        yield from _number(manifest, path, value)
    elif field.holds == "bool" and isinstance(value, str):
        new = changed(manifest.data, path, value.lower() == "true") if value.lower() in ("true", "false") else None
        yield _mistake(manifest).at(manifest, path, seen=f'"{value}", which is a text', expected="true or false, without quotes", new=new)
    elif field.holds == "quantity":
        yield from _quantity(manifest, path, str(path[-1]), value)
    elif field.holds == "quantities" and isinstance(value, dict):
        for key, amount in value.items():
            yield from _quantity(manifest, (*path, str(key)), str(key), amount)


def _word(manifest: Manifest, path: Path, value: str, values: tuple[str, ...]) -> Finding:
    by_letters = {known.lower(): known for known in values}
    near = FORMER_VALUES.get(value) or by_letters.get(value.lower()) or nearest(value, values, cutoff=0.7)
    new = changed(manifest.data, path, near) if near else None
    expected = f"{near} (did you mean that?)" if near else f"one of {', '.join(values)}"
    sure = bool(near) or not manifest.document.api_version.startswith(("karpenter", "kops"))
    return _mistake(manifest, sure=sure).at(manifest, path, seen=value, expected=expected, new=new)


def _number(manifest: Manifest, path: Path, value: Any) -> Iterator[Finding]:
    if (isinstance(value, int) and not isinstance(value, bool)) or (isinstance(value, float) and value.is_integer()):
        return
    if isinstance(value, list | dict):
        return
    entry = manifest.entry(path)
    raw = entry.raw if entry is not None and not isinstance(value, str) else f'"{value}"'
    right = int(value) if isinstance(value, str) and _NUMBER.fullmatch(value) else None
    new = changed(manifest.data, path, right) if right is not None else None
    expected = f"{right}, without quotes" if right is not None else "a whole number"
    if right is None and isinstance(value, str) and (match := re.fullmatch(r"(\d{1,9})\s*Gi?B?", value)):
        new, expected = changed(manifest.data, path, int(match[1])), f"{match[1]}, a whole number of GiB"
    yield _mistake(manifest).at(manifest, path, seen=raw, expected=expected, new=new)


def _quantity(manifest: Manifest, path: Path, name: str, value: Any) -> Iterator[Finding]:
    if value is None or isinstance(value, list | dict) or is_filled_in_later(value):
        return
    try:
        amount = parse(value)
    except QuantityError:
        right = _right_quantity(value)
        expected = f"{right} (did you mean that?)" if right else "a quantity of Kubernetes, such as 500m, 2 or 64Gi"
        new = changed(manifest.data, path, right) if right else None
        yield _mistake(manifest).at(manifest, path, seen=str(value), expected=expected, new=new, advice=f"write {right or 'a quantity'}")
        return
    if "/" in name and "kubernetes.io/" not in name and amount.denominator != 1:
        # The smallest whole number that is enough.
        advice = f"write {math.ceil(amount)}; to share a device, let its plugin divide it (time-slicing, MPS or MIG)"
        yield _mistake(manifest).at(manifest, path, seen=str(value), expected="a whole number of devices", advice=advice)
    elif name in _BYTES and 0 < amount < _LEAST_BYTES:
        yield _TINY.at(manifest, path, seen=f"{value}, which is {float(amount):g} bytes", expected="a quantity with its unit, such as 64Gi")


def _right_quantity(value: Any) -> str:
    """The quantity that ``value`` probably means; empty if that is not known."""
    match = _SLIP.fullmatch(value.strip()) if isinstance(value, str) else None
    if match is None or not match[2]:
        return ""
    unit = "k" if match[2] in "kK" and not match[3] else match[2].upper()
    text = f"{match[1]}{unit}{match[3]}"
    try:
        parse(text)
    except QuantityError:
        return ""
    return text


def find_wrong_effects(manifests: Manifests) -> Iterable[Finding]:
    """L25: effects of taints in groups of kOps and eksctl that are written as ``key=value:Effect``."""
    for group in groups_of(manifests):
        path, taints = (*group.path, "taints"), group.document.value("taints")
        pairs = taints.items() if isinstance(taints, dict) else enumerate(taints) if isinstance(taints, list) else ()
        for key, text in pairs:
            if not isinstance(text, str) or is_filled_in_later(text):
                continue
            rest, _, effect = text.rpartition(":")
            if effect not in _EFFECTS:
                near = nearest(effect, _EFFECTS, cutoff=0.7)
                right = f"{rest}:{near}".removeprefix(":") if rest and near else ""
                expected = f"{right} (did you mean that?)" if right else f"a taint that ends with :{', :'.join(_EFFECTS[:2])} or :NoExecute"
                new = changed(group.manifest.data, (*path, key), right) if right else None
                yield _mistake(group.manifest).at(group.manifest, (*path, key), seen=text, expected=expected, new=new)


LINTS = (
    Lint("L25", "values that are not taken", find_refused_values),
    Lint("L25", "effects of taints of groups", find_wrong_effects),
)
