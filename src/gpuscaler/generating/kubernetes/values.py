"""Values of gpuscaler's chart: for the controller and the metrics API, and for the exporter, which is a release of its own."""

from collections.abc import Iterable, Iterator
from typing import Final

from gpuscaler.generating.aws.names import controller_role_arn, queue_url
from gpuscaler.generating.azure.names import CLIENT_ID_OUTPUT, resource_group
from gpuscaler.generating.description.resolved import EXPORTER_NAMESPACE, Description
from gpuscaler.generating.description.settings import IRSA, KOPS
from gpuscaler.generating.kubernetes.device_plugin import KOPS_RUNTIME_CLASS
from gpuscaler.generating.kubernetes.existing import exists
from gpuscaler.generating.kubernetes.metrics import DUTY_CYCLE, RULES
from gpuscaler.generating.kubernetes.network_policies import NAMESPACE_LABEL, prometheus_namespace
from gpuscaler.generating.kubernetes.workloads.placing import places
from gpuscaler.generating.writing.explained import Tree, because
from gpuscaler.generating.writing.files import GeneratedFile, Step, yaml_file
from gpuscaler.model.pools import DEFAULT_DOLLARS

VALUES, EXPORTER_VALUES = "gpuscaler/values.yaml", "gpuscaler/exporter-values.yaml"
#: Stand for the subscription's id if the description lacks it, and for the id of gpuscaler's identity, which Azure makes.
SUBSCRIPTION_PLACEHOLDER: Final = "00000000-0000-0000-0000-000000000000"
CLIENT_ID_PLACEHOLDER: Final = "REPLACE-ME-WITH-THE-CLIENT-ID"
#: The port of the exporter, as the chart has it.
_EXPORTER_PORT: Final = 9400
_CHART: Final = '"$GPUSCALER/charts/gpuscaler"'


def values_files(description: Description) -> Iterable[GeneratedFile]:
    rules = f" --values {RULES}" if description.prometheus else ""
    yield yaml_file(
        VALUES,
        "gpuscaler itself" + (", and the API of GPU metrics" if description.prometheus else ""),
        [_values(description)],
        apply=f"helm upgrade --install gpuscaler {_CHART} --namespace {description.controller.namespace} --values {VALUES}{rules}",
        checks=tuple(_checks(description)),
        then=tuple(_letting_it_act(description)),
    )
    yield yaml_file(
        EXPORTER_VALUES,
        "the exporter of GPU metrics",
        [_exporter(description)],
        apply=f"helm upgrade --install gpuscaler {_CHART} --namespace {EXPORTER_NAMESPACE} --values {EXPORTER_VALUES}",
        edit="see how your Prometheus finds what it scrapes. Jobs of the community's chart scrape pods with the annotations of this file. "
        "The Prometheus Operator ignores them: with it, set `serviceMonitor.enabled: true`, and `serviceMonitor.labels` to those by which "
        "it selects monitors"
        if description.prometheus
        else "",
        then=tuple(_metric(description)),
    )


def _checks(description: Description) -> Iterator[Step]:
    """Yield what a person does between filling in the values and installing the chart."""
    if description.cloud == "azure":
        # -i with a suffix is understood by the sed of Linux and by that of macOS.
        yield Step(
            say="Fill in the id of gpuscaler's identity, which Terraform made:",
            commands=f'sed -i.bak "s/{CLIENT_ID_PLACEHOLDER}/$(terraform -chdir=terraform output -raw {CLIENT_ID_OUTPUT})/" {VALUES}',
        )
    yield Step(
        say="Look at what gpuscaler finds in the account with your rights. Every pool that is listed will be managed; the described groups "
        "should all be there:",
        commands=f"gpuscaler validate {VALUES}\ngpuscaler pools --config {VALUES}\ngpuscaler doctor --config {VALUES}",
    )


def _letting_it_act(description: Description) -> Iterator[Step]:
    """Yield how a dry run ends."""
    if exists(description):
        yield Step(
            say="It plans and changes nothing. Read what it would do, for a day or more:",
            commands=f"kubectl --namespace {description.controller.namespace} logs deployment/gpuscaler-controller --follow",
        )
        yield Step(say=f"To let it act, delete `dryRun: true` from `{VALUES}`, and run the command of helm again.")


def _metric(description: Description) -> Iterator[Step]:
    """Yield how a person sees that the metric of the autoscaler exists: exporter, Prometheus, rules and metrics API work together."""
    place = places(description).get("inference")
    if description.prometheus and place is not None:
        path = f"/apis/custom.metrics.k8s.io/v1beta2/namespaces/{place.namespace}/pods/*/{DUTY_CYCLE}"
        yield Step(
            say="Once a pod of the model server uses a GPU, this prints its value. Until it does, the autoscaler shows `<unknown>`:",
            commands=f"kubectl get --raw '{path}'",
        )


def _image(description: Description) -> Tree:
    return because(
        "The image that you built and pushed. Better than the tag of the chart's version is its digest: set image.digest to what the "
        "registry reports.",
        {"repository": description.controller.image},
    )


def _values(description: Description) -> Tree:
    config = {
        "cloud": because("The pools are read from this cloud, rather than listed here.", description.cloud),
        **(_aws(description) if description.cloud == "aws" else _azure(description)),
        "limits": _limits(description),
    }
    controller = {**_dry_run(description), **_identity(description)}
    values = {"image": _image(description), **({"controller": controller} if controller else {}), "config": config}
    if description.prometheus:
        values["metrics"] = {
            "enabled": because("Serves GPU metrics to the HorizontalPodAutoscaler.", True),
            "prometheusUrl": because("Where the metrics are read.", description.prometheus),
        }
        values |= _scrapers(description)
    return values


def _dry_run(description: Description) -> dict[str, Tree]:
    if not exists(description):
        return {}
    why = (
        "The cluster has run without gpuscaler so far, which would also manage groups that exist already. With this line it plans, logs "
        "what it would do, and has no right to change anything. Delete the line to let it act."
    )
    return {"dryRun": because(why, True)}


def _identity(description: Description) -> dict[str, Tree]:
    """Return the identity of the controller's pods. Where they may run is the chart's own default: not on machines that it can remove."""
    if description.cloud == "azure":
        return {
            "serviceAccount": {
                "annotations": because(
                    "Which managed identity the pods have. There is no secret that could leak.",
                    {"azure.workload.identity/client-id": CLIENT_ID_PLACEHOLDER},
                )
            },
            "podLabels": because(
                "Only pods with this label get the token. The value is text, so it is quoted.", {"azure.workload.identity/use": "true"}
            ),
        }
    if description.tool != KOPS and description.controller.identity == IRSA:
        return {
            "serviceAccount": {
                "annotations": because(
                    "IRSA: pods of this account exchange their token for credentials of the role. The role's trust names the account.",
                    {"eks.amazonaws.com/role-arn": controller_role_arn(description)},
                )
            }
        }
    return {}


def _aws(description: Description) -> dict[str, Tree]:
    return {
        "aws": {
            "cluster": because(
                "The name in the tags of the Auto Scaling groups"
                + (", with kOps including the domain." if description.tool == KOPS else ".")
                + " Groups of other clusters are never touched.",
                description.cluster.name,
            ),
            "regions": because("Where the groups are.", [description.cluster.region]),
            "queue_url": because(
                "The queue of interruption notices. Without it, a spot machine ends without its pods being moved first.",
                queue_url(description),
            ),
        }
    }


def _azure(description: Description) -> dict[str, Tree]:
    cluster = description.cluster
    return {
        "azure": {
            "subscriptions": [
                {
                    "id": because("The subscription that the cluster is in.", cluster.subscription or SUBSCRIPTION_PLACEHOLDER),
                    "cluster": because(
                        "The cluster and its own resource group, not the one that begins with MC_: that one is read from the cluster.",
                        {"name": cluster.name, "resource_group": resource_group(description)},
                    ),
                }
            ]
        },
        "pools": because(
            "The agent pools by their names. Azure knows no maximum for a pool whose own autoscaler is off, so it stands here.",
            [{"name": group.name, **({"min": group.min} if group.min else {}), "max": group.max} for group in description.groups],
        ),
    }


def _limits(description: Description) -> Tree:
    controller = description.controller
    gpus = sum(group.max * group.gpus for group in description.groups) if controller.gpus is None else controller.gpus
    why_gpus = (
        "As many as all groups have at their maximum: the sum of max times GPUs of a machine."
        if controller.gpus is None
        else "Over all pools, whatever their maximums are."
    )
    dollars = DEFAULT_DOLLARS if controller.dollars_per_hour is None else controller.dollars_per_hour
    return {
        "gpus": because(why_gpus, gpus),
        "dollars_per_hour": because(
            "gpuscaler buys nothing that would lift the sum of the prices of all machines above this, whatever is pending. Minimums are "
            "not covered: the cloud keeps those machines running, whatever they cost.",
            int(dollars) if float(dollars).is_integer() else dollars,
        ),
    }


def _scrapers(description: Description) -> dict[str, Tree]:
    return {
        "networkPolicy": {
            "scrapers": because(
                "Prometheus must reach the metrics; nothing else from another namespace can.",
                [{"namespaceSelector": {"matchLabels": {NAMESPACE_LABEL: prometheus_namespace(description)}}}],
            )
        }
    }


def _exporter(description: Description) -> Tree:
    exporter: dict[str, Tree] = {"enabled": because("One pod on each node with NVIDIA GPUs.", True)}
    if description.tool == KOPS:
        exporter["runtimeClassName"] = because(
            "On kOps, the driver is mounted only into pods of this class, which kOps creates.", KOPS_RUNTIME_CLASS
        )
    if description.cloud == "azure":
        exporter["scheduledEvents"] = {
            "enabled": because(
                "Azure announces evictions on the machine only, 30 seconds ahead. The exporter writes them on its node, where gpuscaler "
                "sees them.",
                True,
            )
        }
    if description.prometheus:
        exporter["podAnnotations"] = because(
            "Prometheus scrapes pods with these annotations where its jobs use them. Without a scrape there is no metric, and the "
            "autoscaler stays where it is. Values are text, so they are quoted.",
            {"prometheus.io/scrape": "true", "prometheus.io/port": str(_EXPORTER_PORT)},
        )
    return {
        "image": _image(description),
        "controller": {
            "enabled": because("The controller is a release of its own, in a namespace that forbids what the exporter needs.", False)
        },
        "exporter": exporter,
        **(_scrapers(description) if description.prometheus else {}),
    }
