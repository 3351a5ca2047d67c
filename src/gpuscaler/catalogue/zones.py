"""The region of a zone, derived from the zone's name."""

from gpuscaler import catalogue
from gpuscaler.model.zones import AWS, AZURE, GCP


def region_of(zone: str, default: str) -> str:
    """Return the region in the name of ``zone``, else ``default`` (the file's ``region``)."""
    for pattern in (AWS, GCP):
        match = pattern.fullmatch(zone)
        if match:
            return match[1]
    # Private zones can look like this too, so only known regions count.
    match = AZURE.fullmatch(zone)
    if match and (match[1] == default or catalogue.regions().get(match[1]) == "azure"):
        return match[1]
    return default


def cloud_of(zone: str, region: str) -> str:
    """Return the cloud of a zone or region by name: one of :data:`gpuscaler.catalogue.CLOUDS`, or "" if the name does not show it."""
    if GCP.fullmatch(zone):
        return "gcp"
    if AWS.fullmatch(zone):
        return "aws"
    return catalogue.regions().get(region, "")
