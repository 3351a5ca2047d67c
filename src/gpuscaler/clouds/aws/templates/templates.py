"""Launch templates of one region. A version never changes, so each is read once; only the numbers of $Latest and $Default are re-read."""

from collections.abc import Iterable, Mapping
from concurrent.futures import Executor
from typing import Any

from gpuscaler.clouds.aws.api.calls import Calls, DeniedError
from gpuscaler.clouds.aws.api.groups import TemplateRef
from gpuscaler.clouds.aws.templates.launches import Launch, launch_of
from gpuscaler.clouds.protocol import CloudError

#: How many templates one call describes.
_AT_ONCE = 200
_BY_NAME = "launch-template-name"
_NUMBERS = {"$Latest": "LatestVersionNumber", "$Default": "DefaultVersionNumber"}


class Templates:
    """Cache of the launch templates of ``region``."""

    def __init__(self, region: str, calls: Calls, workers: Executor) -> None:
        self._region, self._calls, self._workers = region, calls, workers
        #: By id or name, and version number.
        self._versions: dict[tuple[str, str], Launch] = {}
        #: The denial if versions may not be read; it is checked once per pass.
        self._denied: list[DeniedError] = []

    def resolve(self, refs: Iterable[TemplateRef]) -> tuple[dict[TemplateRef, Launch], dict[str, str]]:
        """Launch data by reference, and notes on what could not be read."""
        unique_refs = list(dict.fromkeys(refs))
        numbers, notes = self._numbers([ref for ref in unique_refs if ref.version in _NUMBERS])
        numbers |= {ref: ref.version for ref in unique_refs if ref.version not in _NUMBERS}
        keys = {ref: (ref.id or ref.name, number) for ref, number in numbers.items()}
        missing = {key: ref for ref, key in keys.items() if key not in self._versions}
        self._denied.clear()
        for key, answer in zip(missing, self._workers.map(self._read, missing.values(), [key[1] for key in missing]), strict=True):
            if isinstance(answer, Launch):
                self._versions[key] = answer
            elif not self._denied:
                notes[f"launch template {key[0]}"] = answer
        if self._denied:
            notes["versions of launch templates"] = self._denied[0].detail
        return {ref: self._versions[key] for ref, key in keys.items() if key in self._versions}, notes

    def _numbers(self, refs: list[TemplateRef]) -> tuple[dict[TemplateRef, str], dict[str, str]]:
        """The current version numbers of ``$Latest`` and ``$Default``."""
        names = sorted({ref.name for ref in refs if ref.name})
        ids = sorted({ref.id for ref in refs if not ref.name})
        asks: list[dict[str, Any]] = [{"Filters": [{"Name": _BY_NAME, "Values": batch}]} for batch in _chunks(names)]
        # Groups refer to templates in both ways. There is no filter for ids, and an id that is gone fails the call.
        asks += [{"LaunchTemplateIds": batch} for batch in _chunks(ids)]
        current: dict[str, Mapping[str, object]] = {}
        notes: dict[str, str] = {}
        for entries in self._workers.map(self._describe, asks):
            if isinstance(entries, CloudError):
                notes["launch templates"] = entries.detail
                continue
            for entry in entries:
                current[str(entry["LaunchTemplateId"])] = current[str(entry["LaunchTemplateName"])] = entry
        numbers = {}
        for ref in refs:
            entry_of_ref = current.get(ref.id or ref.name)
            # If the numbers may not be read, ``$Latest`` or ``$Default`` itself is read each time.
            numbers[ref] = str(entry_of_ref[_NUMBERS[ref.version]]) if entry_of_ref is not None else ref.version
        for ref in refs:
            self._versions.pop((ref.id or ref.name, ref.version), None)
        return numbers, notes

    def _describe(self, ask: Mapping[str, Any]) -> list[Mapping[str, object]] | CloudError:
        try:
            return list(self._calls.pages("ec2", self._region, "DescribeLaunchTemplates", "LaunchTemplates", **ask))
        except CloudError as error:
            return error

    def _read(self, ref: TemplateRef, number: str) -> Launch | str:
        """The version, or the error of reading it."""
        if self._denied:
            return self._denied[0].detail
        template: dict[str, Any] = {"LaunchTemplateId": ref.id} if ref.id else {"LaunchTemplateName": ref.name}
        try:
            reply = self._calls.read("ec2", self._region, "DescribeLaunchTemplateVersions", Versions=[number], **template)
        except DeniedError as error:
            self._denied.append(error)
            return error.detail
        except CloudError as error:
            return error.detail
        entries = reply.get("LaunchTemplateVersions") or ()
        if not entries:
            return f"saw no version {number}, expected one"
        try:
            entry = entries[0]
            name = entry.get("LaunchTemplateName") or ref.name or ref.id
            return launch_of(entry["LaunchTemplateData"], f"launch template {name} (version {entry.get('VersionNumber', number)})")
        except (KeyError, TypeError, ValueError, AttributeError) as error:
            return f"saw {type(error).__name__}: {error} in version {number}, expected the data of a launch template"


def _chunks(items: list[str]) -> list[list[str]]:
    return [items[start : start + _AT_ONCE] for start in range(0, len(items), _AT_ONCE)]
