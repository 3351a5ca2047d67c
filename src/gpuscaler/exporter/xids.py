"""Actions that XID errors require, from NVIDIA's catalogue, and recovery actions that the driver itself asks for.

The driver's own action is specific to this GPU and this error, and returns to ``none`` once the GPU has recovered. The catalogue is for
drivers that report no action: it is based on the number of the error alone.
"""

import csv
from collections.abc import Mapping
from functools import lru_cache
from importlib import resources
from typing import NamedTuple

#: Actions that the driver may ask for, by NVML's numbers (``NVML_GPU_RECOVERY_ACTION_*``).
RECOVERY_ACTIONS = ("none", "reset", "reboot", "drain_p2p", "drain_and_reset", "recover_imex_domain", "bus_reset", "system_reboot")
#: Stands for a number that is newer than this list.
UNKNOWN = "unknown"
#: Actions that mean that the GPU must not be used as it is, and actions that concern only the program.
CRITICAL = frozenset({"reset", "examine", "reboot", "power_cycle", "repair"})
APPLICATION = frozenset({"restart_program"})
#: What to do for each action, as part of a sentence.
REMEDIES: Mapping[str, str] = {
    "reset": "reset the GPU",
    "examine": "reset the GPU, and replace it if the error occurs again",
    "reboot": "restart the machine",
    "power_cycle": "switch the machine off and on, or replace it",
    "repair": "have it repaired",
    "drain_p2p": "stop the processes that use the GPU together with others",
    "drain_and_reset": "stop the processes that use it, and reset the GPU",
    "recover_imex_domain": "recover its IMEX domain",
    "bus_reset": "reset its bus",
    "system_reboot": "restart the whole system",
    UNKNOWN: "see nvidia-smi -q",
}


class Xid(NamedTuple):
    """One XID error. ``action`` is what it requires immediately, ``description`` describes it."""

    action: str
    description: str


class Catalogue(NamedTuple):
    """NVIDIA's catalogue of XID errors. ``date`` is that of the edition."""

    date: str
    errors: Mapping[int, Xid]


@lru_cache(maxsize=1)
def catalogue() -> Catalogue:
    """The catalogue in the package's data; read once."""
    text = resources.files(__package__).joinpath("data", "xids.csv").read_text(encoding="utf-8")
    title, *lines = text.splitlines()
    rows = csv.DictReader(line for line in lines if not line.startswith("#"))
    date = title.partition(":")[0].rpartition(" ")[2]
    return Catalogue(date, {int(row["xid"]): Xid(row["action"], row["what"]) for row in rows})


def action(xid: int) -> str:
    """The action that ``xid`` requires according to the catalogue; :data:`UNKNOWN` if it is not listed."""
    xid_entry = catalogue().errors.get(xid)
    return xid_entry.action if xid_entry is not None else UNKNOWN


def severity(xid: int) -> str:
    """``critical``, ``application``, or ``other``; unknown errors are ``other``, since there is nothing to act upon."""
    required = action(xid)
    return "critical" if required in CRITICAL else "application" if required in APPLICATION else "other"


def recovery_name(number: int) -> str:
    """The name of NVML's recovery action."""
    return RECOVERY_ACTIONS[number] if 0 <= number < len(RECOVERY_ACTIONS) else UNKNOWN
