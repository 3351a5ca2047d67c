"""Which region a zone is in, by the way its cloud writes zones. No I/O and no list of regions: the name alone tells, or does not."""

import re
from typing import Final

#: us-east-1a, and local zones and wavelength zones: us-west-2-lax-1a, us-east-1-wl1-bos-wlz-1.
AWS: Final = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9])(?:[a-z]|-.+)")
#: us-central1-a
GCP: Final = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")
#: westeurope-2; also the look of many a private zone.
AZURE: Final = re.compile(r"([a-z]+[0-9]?)-[0-9]")


def region_in(zone: str) -> str:
    """The region that the name of ``zone`` tells; empty where it does not."""
    found = AWS.fullmatch(zone) or GCP.fullmatch(zone) or AZURE.fullmatch(zone)
    return found[1] if found else ""
