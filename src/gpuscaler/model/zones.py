"""The region of a zone, derived from the zone's name alone. No I/O and no list of regions."""

import re
from typing import Final

#: us-east-1a, and local zones and wavelength zones: us-west-2-lax-1a, us-east-1-wl1-bos-wlz-1.
AWS: Final = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9])(?:[a-z]|-.+)")
#: us-central1-a
GCP: Final = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")
#: westeurope-2; many private zones look like this too.
AZURE: Final = re.compile(r"([a-z]+[0-9]?)-[0-9]")


def region_in(zone: str) -> str:
    """Return the region in the name of ``zone``; empty if it contains none."""
    match = AWS.fullmatch(zone) or GCP.fullmatch(zone) or AZURE.fullmatch(zone)
    return match[1] if match else ""
