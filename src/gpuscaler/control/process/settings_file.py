"""The run file while the controller runs: read again when it changes; a broken one changes nothing and is told."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec

from gpuscaler.settings.errors import SettingsError
from gpuscaler.settings.pools_file import decode_settings, read_settings
from gpuscaler.settings.run_settings import RunSettings

#: How often the file is looked at, in seconds. A kubelet takes up to a minute to bring a changed ConfigMap anyway.
POLL_SECONDS = 5.0
#: What takes effect while the controller runs; anything else when it is started again.
LIVE = frozenset({"policy", "pace", "log"})


class SettingsFile:
    """The file at ``path``, read when this is made; raises :class:`SettingsError` where it cannot be used then.

    ``settings`` are those of the newest good content, ``trouble`` says what is wrong with a newer one, empty where nothing is.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.trouble = ""
        self._seen = read_settings(path)
        self.settings = decode_settings(self._seen, path)

    def poll(self) -> bool:
        """Look again; whether there are other settings now.

        The content itself is compared: a ConfigMap is changed by a symbolic link on the way, and an editor may keep size and time.
        """
        try:
            data = read_settings(self.path)
            if data == self._seen and not self.trouble:
                return False
            found = decode_settings(data, self.path)
        except SettingsError as error:
            self.trouble = str(error)
            return False
        self._seen, self.trouble = data, ""
        before, self.settings = self.settings, found
        return found != before

    async def follow(self, changed: Callable[[RunSettings, RunSettings], None], broken: Callable[[str], None]) -> None:
        """Poll until cancelled. ``changed`` has the settings before and now, ``broken`` what is wrong, once for each content.

        After a mistake that was taken back without any other change ``broken`` has an empty text.
        """
        while True:
            await asyncio.sleep(POLL_SECONDS)
            before, trouble = self.settings, self.trouble
            if self.poll():
                changed(before, self.settings)
            elif self.trouble != trouble:
                broken(self.trouble)


def changed_keys(before: RunSettings, now: RunSettings) -> tuple[str, ...]:
    """The keys of the run file whose values differ; ``policy`` stands for all of a pools file."""
    names = (name for name in msgspec.structs.asdict(now) if name != "limits_stated")
    changed = tuple(name for name in names if getattr(before, name) != getattr(now, name))
    # That limits are spoken of at all is part of what a pools file says.
    return ("policy", *changed) if before.limits_stated != now.limits_stated and "policy" not in changed else changed


def late_keys(before: RunSettings, now: RunSettings) -> tuple[str, ...]:
    """The keys whose values differ and only count once the controller is started again; what is said of found pools counts at once."""
    same_pools = msgspec.structs.replace(now, aws=msgspec.structs.replace(now.aws, overrides=before.aws.overrides))
    return tuple(name for name in changed_keys(before, same_pools) if name not in LIVE)
