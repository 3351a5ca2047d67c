"""Which region a zone is in, from the way its cloud writes zones."""

from gpuscaler import catalogue
from gpuscaler.model.zones import AWS, AZURE, GCP


def region_of(zone: str, default: str) -> str:
    """The region that ``zone``'s name tells, else ``default`` (the file's ``region``)."""
    for pattern in (AWS, GCP):
        found = pattern.fullmatch(zone)
        if found:
            return found[1]
    # The look of many a private zone too, hence only for regions that are known.
    found = AZURE.fullmatch(zone)
    if found and (found[1] == default or catalogue.regions().get(found[1]) == "azure"):
        return found[1]
    return default


def cloud_of(zone: str, region: str) -> str:
    """The cloud of a zone or region by name: one of :data:`gpuscaler.catalogue.CLOUDS`, or "" where the name does not tell."""
    if GCP.fullmatch(zone):
        return "gcp"
    if AWS.fullmatch(zone):
        return "aws"
    return catalogue.regions().get(region, "")
