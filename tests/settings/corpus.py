"""Pools files that are valid, and files with one mistake each: mistakes that a schema detects, and those that only the parser detects."""

from typing import NamedTuple

SUBSCRIPTION = "aaaaaaaa-0000-0000-0000-000000000000"

GOOD = {
    "smallest": "region: us-east-1\npools: [{name: a, types: [g5.xlarge]}]",
    "offerings only": "pools: [{name: a, zones: [us-east-1a], offerings: [{type: g5.xlarge}]}]",
    "unknown type": "pools: [{name: a, offerings: [{type: x, price: 1, resources: {cpu: 500m, memory: 1Gi, a.b/c: 1}}]}]",
    "reserved": "pools: [{name: a, offerings: [{type: g5.xlarge, market: reserved, price: 0}]}]",
    "empty values": "region: us-east-1\nlimits:\npools: [{name: a, types: [g5.xlarge], max: , spare: , offerings: , labels: }]",
    "spare": "region: us-east-1\npools: [{name: a, types: [g5.xlarge], spare: {gpus: 2}}]",
    "budgets": (
        "region: us-east-1\npools: [{name: a, types: [g5.xlarge], budgets:"
        " [{nodes: 10%}, {nodes: 3, reasons: [], schedule: '@daily', duration: 1h}, {nodes: '4', schedule: , duration: }]}]"
    ),
    "taints": (
        "region: us-east-1\npools: [{name: a, types: [g5.xlarge], startup_taints: [],"
        " taints: ['a:NoSchedule', {key: b, effect: NoExecute}]}]"
    ),
    "labels": "region: us-east-1\npools: [{name: a, types: [g5.xlarge], labels: {a.b/c: '', d: e_f.g}}]",
    "all top keys": (
        "region: us-east-1\npreferences: respect\nschedulers: [a]\npriority_cutoff: -5\nmin_saving: 1e-1\nmax_grace: 90m\n"
        "limits: {gpus: 0, machines: 1, dollars_per_hour: 0, machines_per_minute: 3}\n"
        "pools: [{name: a, types: [g5.xlarge], chooser: cloud}]"
    ),
    "smallest to run": "region: us-east-1\ncloud: simulated\npools: [{name: a, types: [g5.xlarge]}]",
    "everything to run": (
        "region: us-east-1\ncloud: simulated\nnamespace: a-b\npools: [{name: a, types: [g5.xlarge], zones: [us-east-1a]}]\n"
        "simulated: {boot: [1s, 2s, 3m], device_plugin_delay: 0, capacity_error_delay: 2s, seed: 7, kubelet: false,\n"
        "  image_pull: [0s, 1s, 2s],\n"
        "  dry: [{}, {pool: a, type: g5.xlarge, market: spot, zone: us-east-1a}],\n"
        "  quotas: [{machines: 0}, {machines: 4, types: [g5.xlarge], market: on-demand}],\n"
        "  reclaim: {after: 1s, notice: 0s, without_notice: 1},\n"
        "  faults: {never_registers: 0.1, impaired: 1, never_visible: 0, throttled: 0.5, lost: 0.1, partial_grants: 1,\n"
        "    absent: [{resource: nvidia.com/gpu}, {resource: a.b/c, type: g5.xlarge, share: 0.5}], plugin_restarts: 1h,\n"
        "    plugin_away: 30s, kubelet_stops: 10h, stale: 90s, tokens: false}}\n"
        "pace: {debounce: 10ms, patience: 1s, resync: 1m, register_timeout: 5m, ready_timeout: 5m, consolidate: 10m}\n"
        "leader_election: {enabled: false, name: other, lease: 30s, renew: 20s, retry: 5s}\n"
        "rate_limit: {qps: 0.5, burst: 1}\nhttp: {enabled: false, address: '[::1]:0', certificate: a.pem, key: b.pem, alive_within: 5m}\n"
        "pages: {enabled: true, address: 'localhost:0', authenticated: {address: ':8443', certificate: a.pem, key: b.pem}}\n"
        "exporters: {namespace: gpu-exporter, port: 9500, interval: 1s}\n"
        "history: {folder: /data, decisions: 1, bytes: 1Gi}\nlog: {level: debug}\n"
        "doctor: {enabled: false, ignore: [{check: D34, object: 'PodDisruptionBudget default/*', reason: by hand, until: 2027-01-31}]}"
    ),
    "run keys without values": (
        "region: us-east-1\ncloud:\nsimulated: {dry: }\npace:\nhttp: {address: }\nlog:\npools: [{name: a, types: [g5.xlarge]}]"
    ),
    "smallest for aws": "cloud: aws\nregion: us-east-1",
    "everything for aws": (
        "cloud: aws\naws: {cluster: my.cluster, regions: [us-east-1, us-gov-west-1], groups: [a b], tags: {team: ml, empty: ''},\n"
        "  queue_url: 'https://sqs.us-east-1.amazonaws.com/1/q', endpoint_url: 'http://[::1]:4566', launch: fleet,\n"
        "  prices: {g5.xlarge: 1, g5.xlarge/spot: 0.3, p5.48xlarge/reserved: 0}}\n"
        "pools: [{name: a, min: 1, max: 5, spare: {gpus: 1}, idle_after: 5m, priority: 3, labels: {a: b}, taints: ['c:NoSchedule'],\n"
        "  startup_taints: ['d:NoExecute'], min_gpus_per_pod: 1, budgets: [{nodes: 1}],\n"
        "  offerings: [{type: g5.xlarge, market: spot, zone: us-east-1a, price: 0.3}]}]"
    ),
    "aws without a word of pools": "region: us-east-1\ncloud: aws\naws: {cluster: a}\npools: []",
    "smallest for azure": f"cloud: azure\nazure: {{subscriptions: [{{id: {SUBSCRIPTION}, cluster: {{name: prod, resource_group: rg}}}}]}}",
    "azure without AKS": f"cloud: azure\nazure: {{subscriptions: [{{id: {SUBSCRIPTION}, resource_groups: [nodes]}}]}}\npools: []",
    "everything for azure": (
        "cloud: azure\nazure:\n  subscriptions:\n"
        f"  - {{id: {SUBSCRIPTION.upper()}, cluster: {{name: prod_1, resource_group: rg(1).x}}, resource_groups: [a, b],\n"
        "     pools: [sys, vmss-1], tags: {team: ml, empty: ''}, exclude: ['cpu-*', 'tag:team=web']}\n"
        "  - {id: 11111111-0000-0000-0000-000000000000, resource_groups: [c]}\n"
        "  endpoint_url: 'http://azure.lab.svc:4577'\n  api: agentpool\n"
        "  prices: {Standard_NC24ads_A100_v4: 3, Standard_NC24ads_A100_v4/spot: 0.9}\n"
        "pools: [{name: a, min: 1, max: 5, offerings: [{type: Standard_NC24ads_A100_v4, zone: eastus-1, price: 1}]}]"
    ),
    "dry as a file": "region: us-east-1\nsimulated: {dry: spot.csv}\npools: [{name: a, types: [g5.xlarge]}]",
}


class Bad(NamedTuple):
    """A file with one problem: ``place`` is its place, ``says`` a part of its message."""

    text: str
    place: str
    says: str


def _top(line: str) -> str:
    return f"region: us-east-1\n{line}\npools:\n- name: p\n  types: [g5.xlarge]\n"


def _aws(line: str) -> str:
    return f"region: us-east-1\ncloud: aws\n{line}\n"


def _azure(inside: str, after: str = "") -> str:
    """A file with one subscription, with ``inside`` in its mapping and ``after`` beside the list of subscriptions."""
    return f"cloud: azure\nazure: {{subscriptions: [{{id: {SUBSCRIPTION}, {inside}}}]{after}}}\n"


AKS = "cluster: {name: prod, resource_group: rg}"


def _pool(line: str) -> str:
    return f"region: us-east-1\npools:\n- name: p\n  types: [g5.xlarge]\n  {line}\n"


def _offering(inside: str) -> str:
    return f"region: us-east-1\npools:\n- name: p\n  offerings:\n  - {{{inside}}}\n"


#: Wrong in form: rejected by schema and parser.
BAD_FORM = [
    Bad("[]", "", "saw a list, expected a mapping"),
    Bad("pools", "", 'saw "pools", expected a mapping'),
    Bad("region: us-east-1", "", "saw no pools"),
    Bad("pools:", "", "saw no pools"),
    Bad("pools: []", "pools", "expected at least one pool"),
    Bad("pools: {a: b}", "pools", "saw a mapping, expected a list"),
    Bad("pools: [a]", "pools[0]", 'saw "a", expected a mapping'),
    Bad("region: us-east-1\npools: [{types: [g5.xlarge]}]", "pools[0]", "saw no name"),
    Bad("pools: [{name: a}]", "pools[0]", "saw neither types nor offerings"),
    Bad("pools: [{name: a, types: , offerings: }]", "pools[0]", "saw neither types nor offerings"),
    Bad(_top("pool: []"), "pool", "unknown key; did you mean pools?"),
    Bad(_top("wibble: 1"), "wibble", "expected one of pools, limits"),
    Bad(_top("region2: a"), "region2", "did you mean region?"),
    Bad(_top("preferences: maybe"), "preferences", "expected one of ignore, respect"),
    Bad(_top("preferences: Respect"), "preferences", "did you mean respect?"),
    Bad(_top("schedulers: default-scheduler"), "schedulers", "expected a list"),
    Bad(_top("schedulers: []"), "schedulers", "at least one scheduler name"),
    Bad(_top("schedulers: [a, a]"), "schedulers[1]", "a second time"),
    Bad(_top("priority_cutoff: low"), "priority_cutoff", 'saw "low", expected a pod priority'),
    Bad(_top("priority_cutoff: 2147483648"), "priority_cutoff", "of 32 bits"),
    Bad(_top("min_saving: -1"), "min_saving", "0 or more"),
    Bad(_top("max_grace: long"), "max_grace", "duration"),
    Bad(_top("min_saving: 5%"), "min_saving", "dollars per hour"),
    Bad(_top("limits: 5"), "limits", "expected a mapping"),
    Bad(_top("limits: {gpu: 5}"), "limits.gpu", "did you mean gpus?"),
    Bad(_top("limits: {gpus: -1}"), "limits.gpus", "saw the number -1"),
    Bad(_top("limits: {gpus: 1.5}"), "limits.gpus", "a whole number"),
    Bad(_top('limits: {machines: "5"}'), "limits.machines", "remove the quotes"),
    Bad(_top("limits: {dollars_per_hour: lots}"), "limits.dollars_per_hour", "dollars per hour"),
    Bad(_pool("chooser: me"), "pools[0].chooser", "expected one of buyer, cloud"),
    Bad(_pool("min: -1"), "pools[0].min", "saw the number -1, expected a number of machines"),
    Bad(_pool("min: yes"), "pools[0].min", "saw the boolean yes"),
    Bad(_pool("max: 1000000000000"), "pools[0].max", "a number of machines"),
    Bad(_pool("spare: -1"), "pools[0].spare", "or {gpus: N}"),
    Bad(_pool("spare: {}"), "pools[0].spare", "saw no gpus"),
    Bad(_pool("spare: {gpu: 1, gpus: 1}"), "pools[0].spare.gpu", "did you mean gpus?"),
    Bad(_pool("spare: [1]"), "pools[0].spare", "saw a list"),
    Bad(_pool("min_gpus_per_pod: -1"), "pools[0].min_gpus_per_pod", "a number of GPUs, 0 or more"),
    Bad(_pool("min_gpus_per_pod: 0.5"), "pools[0].min_gpus_per_pod", "a number of GPUs, 0 or more"),
    Bad(_pool("min_gpus_per_pod: {gpus: 8}"), "pools[0].min_gpus_per_pod", "a number of GPUs, 0 or more"),
    Bad(_pool("idle_after: 10"), "pools[0].idle_after", "a duration with its unit"),
    Bad(_pool("idle_after: 10 minutes"), "pools[0].idle_after", 'saw "10 minutes"'),
    Bad(_pool("idle_after: 1:30"), "pools[0].idle_after", 'saw "1:30"'),
    Bad(_pool("idle_after: -5m"), "pools[0].idle_after", "not negative"),
    Bad(_pool("labels: [a]"), "pools[0].labels", "saw a list, expected a mapping"),
    Bad(_pool("labels: {a: 1}"), "pools[0].labels.a", 'quote it: "1"'),
    Bad(_pool("labels: {a: true}"), "pools[0].labels.a", 'saw the boolean true, expected text as a label\'s value; quote it: "true"'),
    Bad(_pool("labels: {a: on}"), "pools[0].labels.a", 'quote it: "on"'),
    Bad(_pool("labels: {a: }"), "pools[0].labels.a", "saw nothing"),
    Bad(_pool("labels: {a: -b}"), "pools[0].labels.a", "letter or digit at both ends"),
    Bad(_pool('labels: {a: "' + "x" * 64 + '"}'), "pools[0].labels.a", "up to 63"),
    Bad(_pool("labels: {a b: c}"), 'pools[0].labels["a b"]', "the label key"),
    Bad(_pool("labels: {A.b/c: d}"), 'pools[0].labels["A.b/c"]', "the label key"),
    Bad(_pool("labels: {kubernetes.io/hostname: a}"), 'pools[0].labels["kubernetes.io/hostname"]', "a hostname differs between machines"),
    Bad(_pool("taints: a:NoSchedule"), "pools[0].taints", "expected a list"),
    Bad(_pool("taints: [a]"), "pools[0].taints[0]", "expected a taint such as"),
    Bad(_pool("taints: [a=b=c:NoSchedule]"), "pools[0].taints[0]", "expected a taint such as"),
    Bad(_pool("taints: ['a:Noschedule']"), "pools[0].taints[0]", "did you mean NoSchedule?"),
    Bad(_pool("taints: [{key: a}]"), "pools[0].taints[0]", "saw no effect"),
    Bad(_pool("taints: [{effect: NoSchedule}]"), "pools[0].taints[0]", "saw no key"),
    Bad(_pool("taints: [{key: a, effect: No}]"), "pools[0].taints[0].effect", "expected one of NoSchedule"),
    Bad(_pool("taints: [{key: 'a b', effect: NoSchedule}]"), "pools[0].taints[0].key", "name or domain/name"),
    Bad(_pool("taints: [{key: a, value: 1, effect: NoSchedule}]"), "pools[0].taints[0].value", "quote it"),
    Bad(_pool("startup_taints: [5]"), "pools[0].startup_taints[0]", "saw the number 5"),
    Bad(_pool("priority: high"), "pools[0].priority", "a whole number"),
    Bad(_pool("arch: x86_64"), "pools[0].arch", "expected one of amd64"),
    Bad(_pool("zones: us-east-1a"), "pools[0].zones", "expected a list"),
    Bad(_pool("zones: []"), "pools[0].zones", "remove the key to leave it open"),
    Bad(_pool("zones: [us-east-1a, us-east-1a]"), "pools[0].zones[1]", "remove one"),
    Bad(_pool("zones: [1]"), "pools[0].zones[0]", 'quote it: "1"'),
    Bad(_pool("markets: [preemptible]"), "pools[0].markets[0]", "expected one of reserved, spot, on-demand"),
    Bad(_pool("markets: [ondemand]"), "pools[0].markets[0]", "did you mean on-demand?"),
    Bad(_pool("markets: []"), "pools[0].markets", "at least one market"),
    Bad(_pool("offerings: []"), "pools[0].offerings", "at least one offering"),
    Bad(_pool("budgets: {nodes: 1}"), "pools[0].budgets", "expected a list"),
    Bad(_pool("budgets: [{}]"), "pools[0].budgets[0]", "saw no nodes"),
    Bad(_pool("budgets: [{nodes: 101%}]"), "pools[0].budgets[0].nodes", "such as"),
    Bad(_pool("budgets: [{nodes: -1}]"), "pools[0].budgets[0].nodes", "a count such as 5"),
    Bad(_pool("budgets: [{nodes: 1, reasons: [Drifted]}]"), "pools[0].budgets[0].reasons[0]", "expected one of idle"),
    Bad(_pool("budgets: [{nodes: 1, schedule: '@daily'}]"), "pools[0].budgets[0]", "saw schedule without duration"),
    Bad(_pool("budgets: [{nodes: 1, duration: 5m}]"), "pools[0].budgets[0]", "saw duration without schedule"),
    Bad(_pool("budgets: [{nodes: 1, schedule: 5, duration: 5m}]"), "pools[0].budgets[0].schedule", "quote it"),
    Bad(_offering("price: 1"), "pools[0].offerings[0]", "saw no type"),
    Bad(_offering("type: g5.xlarge, cost: 1"), "pools[0].offerings[0].cost", "expected one of type, market"),
    Bad(_offering("type: g5.xlarge, market: spott"), "pools[0].offerings[0].market", "did you mean spot?"),
    Bad(_offering("type: g5.xlarge, price: -1"), "pools[0].offerings[0].price", "saw the number -1"),
    Bad(_offering("type: g5.xlarge, price: $1"), "pools[0].offerings[0].price", "dollars per hour above 0"),
    Bad(_offering("type: g5.xlarge, price: '1'"), "pools[0].offerings[0].price", 'saw "1"'),
    Bad(_offering("type: g5.xlarge, price: true"), "pools[0].offerings[0].price", "saw the boolean true"),
    Bad(_offering("type: g5.xlarge, resources: 5"), "pools[0].offerings[0].resources", "expected a mapping"),
    Bad(_offering("type: g5.xlarge, resources: {gpu: 5}"), "pools[0].offerings[0].resources.gpu", "did you mean nvidia.com/gpu?"),
    Bad(_offering("type: g5.xlarge, resources: {cpu: [1]}"), "pools[0].offerings[0].resources.cpu", "such as 7910m"),
    Bad(_top("cloud: simulatd"), "cloud", "did you mean simulated?"),
    Bad(_top("cloud: gcp"), "cloud", 'saw "gcp", expected one of simulated, aws, azure'),
    Bad("cloud: aws\naws: {regions: []}", "aws.regions", "at least one region"),
    Bad(_aws("aws: {regions: [us-east-1a]}"), "aws.regions[0]", "expected a region such as us-east-1"),
    Bad(_aws("aws: {cluster: 5}"), "aws.cluster", "quote it"),
    Bad(_aws("aws: {region: us-east-1}"), "aws.region", "did you mean regions?"),
    Bad(_aws("aws: {groups: [5]}"), "aws.groups[0]", "the name of an Auto Scaling group"),
    Bad(_aws("aws: {tags: [a]}"), "aws.tags", "saw a list, expected a mapping"),
    Bad(_aws("aws: {tags: {a: 1}}"), "aws.tags.a", "quote it"),
    Bad(_aws("aws: {queue_url: events}"), "aws.queue_url", "the URL of an SQS queue"),
    Bad(_aws("aws: {endpoint_url: 'http://key:secret@host/'}"), "aws.endpoint_url", "without user and password"),
    Bad(_aws("aws: {launch: runinstances}"), "aws.launch", "expected one of auto"),
    Bad(_aws("aws: {prices: {g5.xlarge: cheap}}"), 'aws.prices["g5.xlarge"]', "dollars per hour"),
    Bad(_aws("aws: {prices: {g5.xlarge/spott: 1}}"), 'aws.prices["g5.xlarge/spott"]', "expected TYPE or TYPE/MARKET"),
    Bad(_aws("pools: [{max: 5}]"), "pools[0]", "saw no name"),
    Bad(_aws("pools: [{name: a, types: [g5.xlarge]}]"), "pools[0].types", "unknown key"),
    Bad(_aws("pools: [{name: a, offerings: [{type: g5.xlarge}]}]"), "pools[0].offerings[0]", "saw no price"),
    Bad("cloud: azure\nazure: {subscriptions: []}", "azure.subscriptions", "at least one subscription; add - id"),
    Bad(f"cloud: azure\nazure: {{subscriptions: [{{{AKS}}}]}}", "azure.subscriptions[0]", "saw no id"),
    Bad(f"cloud: azure\nazure: {{subscriptions: [{{id: prod, {AKS}}}]}}", "azure.subscriptions[0].id", 'saw "prod", expected the id of a'),
    Bad(_azure("cluster: {name: prod}"), "azure.subscriptions[0].cluster", "saw no resource_group"),
    Bad(_azure("cluster: {resource_group: rg}"), "azure.subscriptions[0].cluster", "saw no name"),
    Bad(_azure("cluster: prod"), "azure.subscriptions[0].cluster", "expected a mapping"),
    Bad(_azure("cluster: {name: 'prod.', resource_group: rg}"), "azure.subscriptions[0].cluster.name", "a letter or digit at both ends"),
    Bad(
        _azure(f"cluster: {{name: prod, resource_group: /subscriptions/{SUBSCRIPTION}/resourceGroups/rg}}"),
        "azure.subscriptions[0].cluster.resource_group",
        "expected the name of the cluster's own resource group, not its id",
    ),
    Bad(_azure("resource_groups: [a.]"), "azure.subscriptions[0].resource_groups[0]", "the name of a resource group"),
    Bad(_azure("resource_group: a, " + AKS), "azure.subscriptions[0].resource_group", "did you mean resource_groups?"),
    Bad(_azure("pools: [5], " + AKS), "azure.subscriptions[0].pools[0]", "the name of an agent pool or a scale set"),
    Bad(_azure("resource_groups: [a], tags: {a: 1}"), "azure.subscriptions[0].tags.a", "quote it"),
    Bad(_azure("exclude: ['tag:=x'], " + AKS), "azure.subscriptions[0].exclude[0]", "a tag's key after tag:"),
    Bad(_azure(AKS, ", endpoint_url: azure"), "azure.endpoint_url", "the URL of an endpoint"),
    Bad(_azure(AKS, ", api: vms"), "azure.api", "expected one of auto, vmss, agentpool; did you mean vmss?"),
    Bad(_azure(AKS, ", prices: {Standard_NC6: -1}"), "azure.prices.Standard_NC6", "dollars per hour"),
    Bad(_azure(AKS, ", region: eastus"), "azure.region", "expected one of subscriptions"),
    Bad(_azure(AKS) + "pools: [{name: a, types: [Standard_NC6]}]", "pools[0].types", "unknown key"),
    Bad(_top("namespace: Kube"), "namespace", "lower-case letters"),
    Bad(_top("simulated: {boots: 1s}"), "simulated.boots", "did you mean boot?"),
    Bad(_top("simulated: {boot: 20}"), "simulated.boot", "a duration with its unit"),
    Bad(_top("simulated: {boot: [1s, 2s]}"), "simulated.boot", "the shortest, the typical and the longest"),
    Bad(_top("simulated: {dry: 5}"), "simulated.dry", "or the path of a file of spot series"),
    Bad(_top("simulated: {dry: [{kind: x}]}"), "simulated.dry[0].kind", "unknown key"),
    Bad(_top("simulated: {quotas: [{types: [g5.xlarge]}]}"), "simulated.quotas[0]", "saw no machines, expected the maximum number"),
    Bad(_top("simulated: {quotas: [{machines: -1}]}"), "simulated.quotas[0].machines", "a number of machines"),
    Bad(_top("simulated: {quotas: [{machines: 1, market: sport}]}"), "simulated.quotas[0].market", "did you mean spot?"),
    Bad(_top("simulated: {kubelet: 1}"), "simulated.kubelet", "true or false"),
    Bad(_top("simulated: {seed: -1}"), "simulated.seed", "a whole number"),
    Bad(_top("simulated: {faults: {lost: 1.5}}"), "simulated.faults.lost", "a share from 0 to 1"),
    Bad(_top("simulated: {faults: {stale: fast}}"), "simulated.faults.stale", "a duration"),
    Bad(_top("simulated: {faults: {absent: [{type: g5.xlarge}]}}"), "simulated.faults.absent[0]", "saw no resource, expected the name"),
    Bad(_top("simulated: {faults: {absent: [{resource: cpu}]}}"), "simulated.faults.absent[0].resource", "an extended resource"),
    Bad(_top("simulated: {faults: {plugin_restarts: 1}}"), "simulated.faults.plugin_restarts", "a duration"),
    Bad(_top("pace: {consolidate: often}"), "pace.consolidate", "a duration"),
    Bad(_top("simulated: {reclaim: {without_notice: 2}}"), "simulated.reclaim.without_notice", "a share from 0 to 1"),
    Bad(_top("pace: {debounce: 200}"), "pace.debounce", "a duration with its unit"),
    Bad(_top("leader_election: false"), "leader_election", "expected a mapping"),
    Bad(_top("leader_election: {name: a_b}"), "leader_election.name", "lower-case letters"),
    Bad(_top("rate_limit: {qps: 0}"), "rate_limit.qps", "above 0"),
    Bad(_top("rate_limit: {burst: 0}"), "rate_limit.burst", "1 or more"),
    Bad(_top("http: {address: '8080'}"), "http.address", "HOST:PORT"),
    Bad(_top("pages: {address: 127.0.0.1}"), "pages.address", "HOST:PORT"),
    Bad(_top("pages: {authenticated: {address: ':8443', certificate: a.pem}}"), "pages.authenticated", "key"),
    Bad(_top("exporters: {namespace: A_b}"), "exporters.namespace", "a namespace such as gpu-exporter"),
    Bad(_top("exporters: {port: 0}"), "exporters.port", "a port from 1 to 65535"),
    Bad(_top("history: {decisions: 0}"), "history.decisions", "1 or more"),
    Bad(_top("history: {bytes: [1]}"), "history.bytes", "such as 64Mi"),
    Bad(_top("log: {level: verbose}"), "log.level", "expected one of debug, info"),
    Bad(_top("doctor: {ignore: {check: D34}}"), "doctor.ignore", "expected a list"),
    Bad(_top("doctor: {ignore: [{check: D34, until: 2027-01-31}]}"), "doctor.ignore[0]", "saw no reason"),
    Bad(_top("doctor: {ignore: [{check: D34, reason: by hand}]}"), "doctor.ignore[0]", "saw no until, expected an end date"),
    Bad(_top("doctor: {ignore: [{reason: by hand, until: 2027-01-31}]}"), "doctor.ignore[0]", "saw no check"),
    Bad(_top("doctor: {ignore: [{check: budgets, reason: a, until: 2027-01-31}]}"), "doctor.ignore[0].check", "such as D34"),
    Bad(_top("doctor: {ignore: [{check: D34, reason: ' ', until: 2027-01-31}]}"), "doctor.ignore[0].reason", "why the finding is accepted"),
    Bad(_top("doctor: {ignore: [{check: D34, reason: a, until: 31.1.2027}]}"), "doctor.ignore[0].until", "a date such as 2027-01-31"),
    Bad(_top("doctor: {ignore: [{check: D34, reason: a, until: 2027-01-31T00:00:00Z}]}"), "doctor.ignore[0].until", "a date such as"),
    Bad(_top("doctor: {ignore: [{check: D34, reason: a, until: 2027-01-31, objects: a}]}"), "doctor.ignore[0].objects", "did you mean"),
    Bad("region: us-east-1\npools: [{name: a, types: ['g5.*']}]", "pools[0].types[0]", "up to 63 letters"),
    Bad(_offering("type: g5.xlarge, market: reserved, price: -.inf"), "pools[0].offerings[0].price", "saw the number -.inf"),
]

#: Valid in form, wrong in meaning: rejected by the parser only.
BAD_MEANING = [
    Bad(_top("doctor: {ignore: [{check: D34, reason: a, until: 2027-02-30}]}"), "doctor.ignore[0].until", "a date such as 2027-01-31"),
    Bad(_aws("aws: {prices: {g5.xlarge: 1, g5.xlarge/on-demand: 2}}"), 'aws.prices["g5.xlarge/on-demand"]', "a second on-demand price"),
    Bad(_top("simulated: {boot: [3s, 2s, 4s]}"), "simulated.boot", "saw 3s, 2s, 4s, expected the shortest"),
    Bad(_top("simulated: {quotas: [{machines: 1, types: [g5.2xlarge]}]}"), "simulated.quotas[0].types[0]", "did you mean g5.xlarge?"),
    Bad(_top("simulated: {dry: [{pool: q}]}"), "simulated.dry[0].pool", "expected a pool of the pools; expected one of p"),
    Bad(_top("simulated: {dry: [{type: g5.2xlarge}]}"), "simulated.dry[0].type", "did you mean g5.xlarge?"),
    Bad(_top("pace: {debounce: 1s, patience: 500ms}"), "pace", "lower debounce or raise patience"),
    Bad(_top("pace: {resync: 1ms}"), "pace.resync", "at least 10ms"),
    Bad(_top("pace: {resync: 0s}"), "pace.resync", "above 0"),
    Bad(_top("leader_election: {renew: 20s}"), "leader_election", "saw lease 15 s, renew 20 s, retry 2 s, expected lease above renew"),
    Bad(_top("leader_election: {lease: 15.5s}"), "leader_election.lease", "whole seconds"),
    Bad(_top("leader_election: {lease: 12s}"), "leader_election", "expected at least 11 s between them"),
    Bad(_top("http: {address: ':70000'}"), "http.address", "HOST:PORT"),
    Bad(_top("http: {certificate: a.pem}"), "http", "saw certificate without key"),
    Bad(_top("pages: {address: ':8081'}"), "pages.address", 'saw ":8081", expected a loopback address such as 127.0.0.1:8081'),
    Bad(_top("pages: {address: '10.0.0.1:8081'}"), "pages.address", "for another address set pages.authenticated"),
    Bad(_top("exporters: {port: 70000}"), "exporters.port", "a port from 1 to 65535"),
    Bad(_top("exporters: {interval: 500ms}"), "exporters.interval", "a duration of at least 1s"),
    Bad(_top("history: {bytes: 0}"), "history.bytes", "such as 64Mi"),
    Bad(_pool("min: 5\n  max: 4"), "pools[0].min", "saw 5, expected at most max, which is 4"),
    Bad("region: us-east-1\npools: [{name: a, types: [m6i.large], spare: {gpus: 2}}]", "pools[0].spare.gpus", "spare: N"),
    Bad(_pool("min_gpus_per_pod: 8"), "pools[0].min_gpus_per_pod", "saw 8, expected at most 1, the GPUs of g5.xlarge"),
    Bad(_pool("labels: {gpuscaler.io/pool: q}"), 'pools[0].labels["gpuscaler.io/pool"]', 'expected "p"'),
    Bad(_pool("taints: ['a=1:NoSchedule', 'a=2:NoSchedule']"), "pools[0].taints[1]", "a second taint a:NoSchedule"),
    Bad(_pool("arch: arm64"), "pools[0].types[0]", "saw g5.xlarge, which is amd64, expected arm64"),
    Bad(_pool("budgets: [{nodes: 1, schedule: hourly, duration: 1h}]"), "pools[0].budgets[0].schedule", "five fields"),
    Bad(_pool("budgets: [{nodes: 1, schedule: '@daily', duration: 0s}]"), "pools[0].budgets[0].duration", "above 0"),
    Bad(_pool("offerings: [{type: g5.xlarge}]"), "pools[0].offerings[0]", "first at pools[0].types[0]"),
    Bad(_pool("markets: [reserved]"), "pools[0].types[0]", "give price under offerings (0 if it is already paid for)"),
    Bad("region: us-east-1\npools: [{name: a, types: [g5.xlarge]}, {name: a, types: [g5.xlarge]}]", "pools[1]", "first at pools[0]"),
    Bad("region: us-east-1\npools: [{name: a, types: [g5.xlrage]}]", "pools[0].types[0]", "did you mean g5.xlarge"),
    Bad("pools: [{name: a, types: [g5.xlarge]}]", "pools[0].types[0]", "no region to look it up in; set region"),
    Bad("region: mars-1\npools: [{name: a, types: [g5.xlarge]}]", "pools[0].types[0]", "in mars-1 (only in ap-northeast-1, eu-west-1"),
    Bad(
        "pools: [{name: a, zones: [westus3-1], markets: [spot], types: [Standard_NC4as_T4_v3]}]",
        "pools[0].types[0]",
        "does not have the spot price of Standard_NC4as_T4_v3 in westus3; give price under offerings",
    ),
    Bad(_offering("type: g5.xlarge, price: 0"), "pools[0].offerings[0].price", "0 only if all is reserved"),
    Bad(_offering("type: g5.xlarge, price: .nan"), "pools[0].offerings[0].price", "saw the number .nan"),
    Bad(_offering("type: g5.xlarge, price: 1e999"), "pools[0].offerings[0].price", "saw the number 1e999"),
    Bad(_offering("type: mine"), "pools[0].offerings[0]", 'saw "mine", which is not in the catalogue'),
    Bad(_offering("type: mine, price: 1"), "pools[0].offerings[0]", "with price and resources"),
    Bad(_offering("type: mine, resources: {cpu: 1, memory: 1Gi}"), "pools[0].offerings[0]", "saw no price"),
    Bad(_offering("type: mine, price: 1, resources: {cpu: 1}"), "pools[0].offerings[0]", "saw no memory in resources of mine"),
    Bad(_offering("type: g5.xlarge, resources: {cpu: 1x}"), "pools[0].offerings[0].resources.cpu", 'saw "1x"'),
    Bad(_offering("type: g5.xlarge, resources: {memory: -1}"), "pools[0].offerings[0].resources.memory", "not negative"),
    Bad(_offering("type: g5.xlarge, resources: {memory: 1e40}"), "pools[0].offerings[0].resources.memory", "such as 28Gi"),
    Bad(_offering("type: g5.xlarge, resources: {pods: 1.5}"), "pools[0].offerings[0].resources.pods", "a whole number"),
    Bad(
        _offering("type: g5.xlarge, resources: {nvidia.com/gpu: 500m}"),
        'pools[0].offerings[0].resources["nvidia.com/gpu"]',
        "a whole number",
    ),
]
