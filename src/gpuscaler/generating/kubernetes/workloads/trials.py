"""What an example asks for, in GPUs, machines and dollars, and how it is removed."""

from dataclasses import replace

from gpuscaler.generating.description.choosing import nearest
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.kubernetes.workloads.placing import Place, machines
from gpuscaler.generating.writing.files import Trial
from gpuscaler.model.offerings import SPOT

#: More types than this are counted rather than listed.
_MOST_LISTED = 3


def trial(description: Description, place: Place, path: str, *, keeps: str = "") -> Trial:
    """Return the trial of the example at ``path``. ``keeps`` are claims of volumes that outlive its objects."""
    remove = f"kubectl delete --filename {path}"
    if keeps:
        remove += f"\nkubectl --namespace {place.namespace} delete persistentvolumeclaim {keeps}"
    gpus, count = place.gpus * place.pods, machines(place)
    asked = f"It asks for {gpus} GPU{'s' if gpus > 1 else ''} in the namespace {place.namespace}, "
    asked += f"on up to {count} machines of" if count > 1 else "on a machine of"
    return Trial(asks=f"{asked} {_types(place)}: {_price(description, place)}.", remove=remove)


def _types(place: Place) -> str:
    types = place.types
    if len(types) > _MOST_LISTED:
        return f"the pool {place.pool}, which has {len(types)} types"
    return " or ".join((", ".join(types[:-1]), types[-1])) if len(types) > 1 else types[0]


def _price(description: Description, place: Place) -> str:
    near = [(machines(replace(place, groups=(group,))), nearest(group.instance_type, description.cluster.region)) for group in place.groups]
    amounts = [count * found.price.on_demand for count, found in near]
    low, high = f"{min(amounts):,.2f}", f"{max(amounts):,.2f}"
    amount = low if low == high else f"{low} to {high}"
    regions = ", ".join(sorted({found.region for _, found in near}))
    spot = "; spot machines cost less" if SPOT in place.markets else ""
    return f"about {amount} dollars an hour at the list price on demand in {regions}{spot}"
