"""What an XID error asks for, by NVIDIA's catalogue, and what the driver itself asks for.

The driver's own verdict is about this GPU, with what it knows of the error, and goes back to ``none`` once it is cured. The catalogue is
for drivers that tell none: it knows the number of an error and nothing more.
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

#: What the driver may ask for, by NVML's numbers (``NVML_GPU_RECOVERY_ACTION_*``).
RECOVERY_ACTIONS = ("none", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot")
#: A number that is newer than this list.
UNKNOWN = "unknown"
#: Actions after which the GPU is not to be used as it is, and those that are the program's own affair.
CRITICAL = frozenset({"reset", "examine", "reboot", "power_cycle", "repair"})
APPLICATION = frozenset({"restart_program"})
#: What is to be done, as a sentence goes on.
WORDS: Mapping[str, str] = {
    "reset": "reset the GPU",
    "examine": "reset the GPU, and replace it if the error comes again",
    "reboot": "restart the machine",
    "power_cycle": "switch the machine off and on, or replace it",
    "repair": "have it repaired",
    "drain_p2p": "end what uses the GPU together with others",
    "drain_and_reset": "end what uses it, and reset the GPU",
    "recover_imex_domain": "recover its IMEX domain",
    "bus_reset": "reset its bus",
    "system_reboot": "restart the whole system",
    UNKNOWN: "see nvidia-smi -q",
}


class Xid(NamedTuple):
    """``action`` is what the error asks for at once, ``what`` what it is."""

    action: str
    what: str


class Catalogue(NamedTuple):
    """``date`` is the edition's."""

    date: str
    errors: Mapping[int, Xid]


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """Read once, of the package's data."""
    text = resources.files(__package__).joinpath("data", "xids.csv").read_text(encoding="utf-8")
    title, *lines = text.splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    date = title.partition(":")[0].rpartition(" ")[2]
    return Catalogue(date, {int(row["xid"]): Xid(row["action"], row["what"]) for row in rows})


def action(xid: int) -> str:
    """What the catalogue says that ``xid`` asks for; :data:`UNKNOWN` for one that it does not know."""
    found = catalogue().errors.get(xid)
    return found.action if found is not None else UNKNOWN


def severity(xid: int) -> str:
    """``critical``, ``application``, or ``other``: unknown errors are none to act upon."""
    asked = action(xid)
    return "critical" if asked in CRITICAL else "application" if asked in APPLICATION else "other"


def recovery(number: int) -> str:
    """The name of NVML's recovery action."""
    return RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else UNKNOWN
