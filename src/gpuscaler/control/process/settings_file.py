"""The run file while the controller runs: read again when it changes; an invalid one changes nothing and is reported."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuscaler.model.reading.errors import SettingsError
from gpuscaler.settings.pools_file import decode_settings, read_settings
from gpuscaler.settings.run_settings import RunSettings

#: How often the file is read, in seconds. A kubelet takes up to a minute to mount a changed ConfigMap anyway.
POLL_SECONDS = 5.0
#: The keys that take effect while the controller runs; all others take effect after a restart.
LIVE = frozenset({"policy", "pace", "log", "doctor"})


class SettingsFile:
    """The file at ``path``, read on construction; raises :class:`SettingsError` if it cannot be used.

    ``settings`` are those of the newest valid content; ``trouble`` says what is wrong with a newer one, and is empty if nothing is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        self._seen = read_settings(path)
        self.settings = decode_settings(self._seen, path)

    def poll(self) -> bool:
        """Read the file again; True if the settings have changed.

        The content is compared: a ConfigMap changes through a symbolic link in its path, and an editor may keep size and time.
        """
        try:
            data = read_settings(self.path)
            if data == self._seen and not self.trouble:
                return False
            settings = decode_settings(data, self.path)
        except SettingsError as error:
            self.trouble = str(error)
            return False
        self._seen, self.trouble = data, ""
        before, self.settings = self.settings, settings
        return settings != before

    async def follow(self, changed: Callable[[RunSettings, RunSettings], None], broken: Callable[[str], None]) -> None:
        """Poll until cancelled. ``changed`` gets the settings before and now; ``broken`` gets what is wrong, once for each content.

        After a mistake that was undone without any other change, ``broken`` gets an empty text.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            before, trouble = self.settings, self.trouble
            if self.poll():
                changed(before, self.settings)
            elif self.trouble != trouble:
                broken(self.trouble)


def changed_keys(before: RunSettings, now: RunSettings) -> tuple[str, ...]:
    """The keys of the run file with changed values; ``policy`` stands for all keys of a pools file."""
    names = (name for name in msgspec.structs.asdict(now) if name != "limits_stated")
    changed = tuple(name for name in names if getattr(before, name) != getattr(now, name))
    # Whether limits are stated at all is part of a pools file.
    return ("policy", *changed) if before.limits_stated != now.limits_stated and "policy" not in changed else changed


def restart_keys(before: RunSettings, now: RunSettings) -> tuple[str, ...]:
    """The changed keys that take effect only after a restart; settings of discovered pools take effect at once."""
    same_pools = now.with_overrides(before.overrides) if now.cloud == before.cloud else now
    return tuple(name for name in changed_keys(before, same_pools) if name not in LIVE)
