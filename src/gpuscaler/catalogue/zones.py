"""Which region a zone is in, from the way its cloud writes zones."""

import re

from gpuscaler import catalogue

#: us-east-1a, and local zones and wavelength zones: us-west-2-lax-1a, us-east-1-wl1-bos-wlz-1.
_AWS = re.compile(r"([a-z]{2}(?:-[a-z]+)+-[0-9])(?:[a-z]|-.+)")
#: us-central1-a
_GCP = re.compile(r"([a-z]+-[a-z]+[0-9]+)-[a-z]")
#: westeurope-2; also the look of many a private zone, hence only for regions that are known.
_AZURE = re.compile(r"([a-z]+[0-9]?)-[0-9]")


def region_of(zone: str, default: str) -> str:
    """The region that ``zone``'s name tells, else ``default`` (the file's ``region``)."""
    for pattern in (_AWS, _GCP):
        found = pattern.fullmatch(zone)
        if found:
            return found[1]
    found = _AZURE.fullmatch(zone)
    if found and (found[1] == default or catalogue.regions().get(found[1]) == "azure"):
        return found[1]
    return default


def cloud_of(zone: str, region: str) -> str:
    """The cloud of a zone or region by name: one of :data:`gpuscaler.catalogue.CLOUDS`, or "" where the name does not tell."""
    if _GCP.fullmatch(zone):
        return "gcp"
    if _AWS.fullmatch(zone):
        return "aws"
    return catalogue.regions().get(region, "")
