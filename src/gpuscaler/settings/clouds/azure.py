"""The keys of a run file that apply to Azure only."""

from collections.abc import Mapping
from typing import Annotated

from gpuscaler.model.overrides import OfferingPrice, PoolOverride
from gpuscaler.model.reading.cursor import Cursor
from gpuscaler.settings.fields.account_kinds import exclusions, tag_mapping, type_prices, url
from gpuscaler.settings.fields.kinds import choice, list_of, text
from gpuscaler.settings.fields.table import Field, Group, Kind, ReadContext, read, schema

#: How sizes of pools are changed; ``auto`` uses scale sets unless their resource group is locked or a pool has none.
APIS = ("auto", "vmss", "agentpool")

_UUID = "[0-9A-Fa-f]{8}(-[0-9A-Fa-f]{4}){3}-[0-9A-Fa-f]{12}"
#: Names that Azure Resource Manager and AKS accept.
_RESOURCE_GROUP = r"[\w().-]{0,89}[\w()-]"
_CLUSTER = "[A-Za-z0-9]([A-Za-z0-9_-]{0,61}[A-Za-z0-9])?"
_SUBSCRIPTION_KIND = text("the id of a subscription, such as 00000000-0000-0000-0000-000000000000", pattern=_UUID)


def _subscription(at: Cursor, context: ReadContext) -> str | None:
    """The id in lower case: Azure compares ids without regard to case."""
    ident = _SUBSCRIPTION_KIND.read(at, context)
    return None if ident is None else ident.lower()


def _resource_group(what: str) -> Kind:
    return text(
        f"the name of {what}",
        words="name of a resource group",
        pattern=_RESOURCE_GROUP,
        otherwise=", not its id: up to 90 letters, digits, '-', '_', '.', '(' and ')', without '.' at the end",
    )


class AzureCluster(Group, frozen=True, gc=False):
    """An AKS cluster; ``name`` is empty if there is none."""

    name: Annotated[
        str,
        text(
            "the name of an AKS cluster",
            words="name",
            pattern=_CLUSTER,
            otherwise=": up to 63 letters, digits, '-' and '_', with a letter or digit at both ends",
        ),
        Field("the cluster's name", required="the name of the AKS cluster; add name: …"),
    ] = ""
    resource_group: Annotated[
        str,
        _resource_group("the cluster's own resource group"),
        Field(
            "the resource group that the cluster itself is in. Its node resource group (`MC_…`) is read from the cluster",
            required="the resource group that the cluster itself is in (not MC_…); add resource_group: …",
        ),
    ] = ""


class AzureSubscription(Group, frozen=True, gc=False):
    """Where pools are in a subscription; ``id`` is in lower case."""

    id: Annotated[
        str,
        Kind("UUID", _SUBSCRIPTION_KIND.schema, _subscription),
        Field("the id of the subscription", required="the id of a subscription; add id: …"),
    ] = ""
    cluster: Annotated[
        AzureCluster,
        Field("[the AKS cluster](#the-cluster); its pools with accelerators are adopted, and those in `pools`", default="no AKS cluster"),
    ] = AzureCluster()
    resource_groups: Annotated[
        tuple[str, ...],
        list_of(_resource_group("a resource group"), "list of names", distinct=True),
        Field("resource groups to search for scale sets that AKS does not manage", default="none"),
    ] = ()
    pools: Annotated[
        tuple[str, ...],
        list_of(text("the name of an agent pool or a scale set"), "list of names", distinct=True),
        Field(
            "agent pools that are adopted although they have no accelerator, and scale sets in `resource_groups` that are adopted although "
            "no tag marks them for discovery, unless they belong to another cluster",
            default="none",
        ),
    ] = ()
    tags: Annotated[
        Mapping[str, str],
        tag_mapping(512),
        Field(
            "a scale set in `resource_groups` with all of these tags is adopted as well, unless it belongs to another cluster",
            default="none",
        ),
    ] = {}
    exclude: Annotated[
        tuple[str, ...],
        exclusions("a pool"),
        Field(
            "agent pools and scale sets that are ignored regardless of other settings and tags: a name, a pattern such as `system-*`, "
            "`tag:KEY` or `tag:KEY=VALUE`",
            default="none",
        ),
    ] = ()

    def check(self, at: Cursor) -> None:
        """Report a subscription in which nothing could be found, and keys without the one that they need."""
        if not at.has("cluster") and not self.resource_groups:
            if not at.has("resource_groups") or at.descend("resource_groups").entry.value == []:
                at.add_problem(
                    "saw neither cluster nor resource_groups, expected where the pools are; "
                    "add cluster: {name: …, resource_group: …}, or resource_groups: […] for scale sets without AKS"
                )
        elif self.tags and not at.has("resource_groups"):
            at.add_problem("saw tags without resource_groups, expected the groups to search for scale sets; add resource_groups: […]")


def _subscriptions(at: Cursor, context: ReadContext) -> tuple[AzureSubscription, ...]:
    items = at.items()
    if not items and isinstance(at.entry.value, list):
        at.wrong("at least one subscription; add - id: …", seen="an empty list")
    subscriptions: dict[str, AzureSubscription] = {}
    places: dict[str, str] = {}
    for item in items:
        subscription = read(AzureSubscription, item, context)
        if subscription.id in places:
            item.add_problem(f"saw {subscription.id} a second time (first at {places[subscription.id]}); merge the two entries")
        elif subscription.id:
            places[subscription.id] = item.path
            subscriptions[subscription.id] = subscription
    return tuple(subscriptions.values())


class AzureSettings(Group, frozen=True, gc=False):
    """How the pools of a cluster are found in Azure: the mapping ``azure``. ``overrides`` are the entries of ``pools``."""

    subscriptions: Annotated[
        tuple[AzureSubscription, ...],
        Kind(
            "list of [subscriptions](#a-subscription)", {"type": "array", "minItems": 1, "items": schema(AzureSubscription)}, _subscriptions
        ),
        Field("where the pools are", default="required with `cloud: azure`, at least one"),
    ] = ()
    endpoint_url: Annotated[
        str,
        url("the URL of an endpoint such as http://127.0.0.1:4577"),
        Field(
            "another endpoint for Azure Resource Manager and for prices: of a national cloud, or for tests. The address of a Service over "
            "http (`http://NAME.NAMESPACE.svc:4577`) is resolved through the API server, not by DNS",
            default="https://management.azure.com, and https://prices.azure.com for prices",
        ),
    ] = ""
    api: Annotated[
        str,
        choice(APIS),
        Field(
            "which API changes the size of AKS pools: that of scale sets (`vmss`), or that of agent pools (`agentpool`), which allows only "
            "one change a minute. `auto` uses scale sets, and agent pools where the node resource group is locked or the pool has no "
            "scale set"
        ),
    ] = "auto"
    prices: Annotated[
        tuple[OfferingPrice, ...],
        type_prices(str.lower),
        Field(
            "US dollars per hour: `SIZE` is the on-demand price, `SIZE/spot` the spot price, `SIZE/reserved` that of reserved capacity. "
            "A market without an entry keeps [its own price](#prices)",
            default="Azure's retail prices",
        ),
    ] = ()
    overrides: tuple[PoolOverride, ...] = ()
