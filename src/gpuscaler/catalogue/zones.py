"""The region of a zone, derived from the zone's name."""

from gpuscaler import catalogue
from gpuscaler.model.zones import AWS, AZURE, GCP


def region_of(zone: str, default: str) -> str:
    """Return the region in the name of ``zone``, else ``default`` (the file's ``region``)."""
    for pattern in (AWS, GCP):
        found = pattern.fullmatch(zone)
        if found:
            return found[1]
    # Private zones can look like this too, so only known regions count.
    found = AZURE.fullmatch(zone)
    if found and (found[1] == default or catalogue.regions().get(found[1]) == "azure"):
        return found[1]
    return default


def cloud_of(zone: str, region: str) -> str:
    """Return the cloud of a zone or region by name: one of :data:`gpuscaler.catalogue.CLOUDS`, or "" if the name does not show it."""
    if GCP.fullmatch(zone):
        return "gcp"
    if AWS.fullmatch(zone):
        return "aws"
    return catalogue.regions().get(region, "")
