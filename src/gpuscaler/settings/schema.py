"""The JSON Schema of pools files and run files, for editors and other programs.

It says what a schema can say: keys, types, forms and ranges. What needs knowledge (whether a type exists, its price, names that are
used twice, min against max) only the parser says.
"""

from typing import Any

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.pools import STEERINGS
from gpuscaler.settings.aws_file import OVERRIDE_KEYS, PRICE_KEYS
from gpuscaler.settings.pieces import EFFECTS, REASONS
from gpuscaler.settings.pools_file import ARCHITECTURES, CHOOSERS, PREFERENCES
from gpuscaler.settings.run_file import DRY_KEYS, PACE_KEYS, SHARES, SPANS, TIMES
from gpuscaler.settings.run_settings import CLOUDS, LAUNCHES, LEVELS

Schema = dict[str, Any]

_LABEL_VALUE = "^[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_QUALIFIED = "^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_REGION = "^[a-z]{2,4}(-[a-z]+)+-[0-9]$"
_DURATION = "^\\+?(0|(([0-9]+\\.?[0-9]*|\\.[0-9]+)(ns|us|µs|μs|ms|s|m|h))+)$"
_INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}


def pools_file_schema() -> Schema:
    """A schema of draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuscaler pools file or run file",
        **_object(
            {
                "pools": _optional({"type": "array"}),
                "limits": _optional(_limits()),
                "region": _optional({"type": "string", "pattern": _LABEL_VALUE, "description": "Region of prices and labels."}),
                "preferences": _optional({"enum": list(PREFERENCES), "default": "ignore"}),
                "schedulers": _optional({**_names("scheduler"), "default": ["default-scheduler"]}),
                "steering": _optional({**_steering(), "default": STEERINGS[0]}),
                "bind_schedulers": _optional({**_names("scheduler"), "default": ["default-scheduler"]}),
                "priority_cutoff": _optional({"type": "integer", **_INT32, "default": -10}),
                "min_saving": _optional({"type": "number", "minimum": 0, "default": 0, "description": "US dollars per hour."}),
                "max_grace": _optional({**_duration(), "default": "1h", "description": "Longest time for a pod to save its work."}),
                **_run(),
            },
        ),
        "if": {"properties": {"cloud": {"const": "aws"}}, "required": ["cloud"]},
        "then": {"properties": {"pools": _optional({"type": "array", "items": _override()})}},
        "else": {"properties": {"pools": {"type": "array", "minItems": 1, "items": _pool()}}, "required": ["pools"]},
    }


def _run() -> Schema:
    """The keys that only `gpuscaler run` uses."""
    path = {"type": "string", "minLength": 1, "description": "A path, relative to the file's folder."}
    wait, flag, share = _duration(), {"type": "boolean"}, {"type": "number", "minimum": 0, "maximum": 1}
    dns = {"type": "string", "pattern": "^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$"}
    number = {"type": "number", "exclusiveMinimum": 0}
    address = {"type": "string", "pattern": "^(\\[[0-9A-Fa-f:.]+\\]|[A-Za-z0-9.-]*):[0-9]{1,5}$"}
    groups: dict[str, Schema] = {
        "simulated": {
            **{key: _span() for key in SPANS},
            "dry": {"anyOf": [path, {"type": "array", "items": _object({key: _optional(_name()) for key in DRY_KEYS})}]},
            "quotas": {
                "type": "array",
                "items": _object(
                    {
                        "machines": _count("How many there may be."),
                        "types": _optional(_names("type")),
                        "market": _optional({"enum": list(MARKETS)}),
                    },
                    required=["machines"],
                ),
            },
            "reclaim": _object(
                {
                    "after": _optional(_span()),
                    "notice": _optional(wait),
                    "without_notice": _optional(share),
                }
            ),
            "faults": _object(
                {
                    **dict.fromkeys(SHARES, _optional(share)),
                    **dict.fromkeys(TIMES, _optional(wait)),
                    "tokens": _optional(flag),
                    "absent": _optional({"type": "array", "items": _absent(share)}),
                }
            ),
            "seed": _count("Seed of everything that is drawn."),
            "kubelet": {**flag, "default": True},
        },
        "aws": _aws(),
        "pace": dict.fromkeys(PACE_KEYS, wait),
        "leader_election": {"enabled": {**flag, "default": True}, "name": dns, "lease": wait, "renew": wait, "retry": wait},
        "rate_limit": {"qps": {**number, "default": 200}, "burst": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1, "default": 300}},
        "http": {
            "enabled": {**flag, "default": True},
            "address": {**address, "default": ":8080"},
            "certificate": path,
            "key": path,
            "alive_within": wait,
        },
        "pages": {
            "enabled": flag,
            "address": {**address, "default": "127.0.0.1:8081"},
            "authenticated": _object({"address": address, "certificate": path, "key": path}, required=["address", "certificate", "key"]),
        },
        "history": {
            "folder": path,
            "decisions": {"type": "integer", "minimum": 1, "maximum": 2**31 - 1, "default": 1000},
            "bytes": {"type": ["string", "integer"]},
        },
        "log": {"level": {"enum": list(LEVELS), "default": "info"}},
    }
    return {
        "cloud": _optional({"enum": list(CLOUDS)}),
        "namespace": _optional(dns),
        **{group: _optional(_object({key: _optional(value) for key, value in keys.items()})) for group, keys in groups.items()},
    }


def _absent(share: Schema) -> Schema:
    """A resource that machines are sold with and never show."""
    resource = {"type": "string", "pattern": "/"}
    return _object({"resource": resource, "type": _optional(_name()), "share": _optional(share)}, required=["resource"])


def _aws() -> dict[str, Schema]:
    """Where the groups are that pools come from."""
    url = {"type": "string", "pattern": "^https?://[^\\s@/]+(/\\S*)?$"}
    text = {"type": "string", "minLength": 1}
    dollars = {"type": "number", "minimum": 0, "description": "US dollars per hour."}
    return {
        "cluster": {**text, "description": "Nothing is adopted without it."},
        "regions": {"type": "array", "minItems": 1, "uniqueItems": True, "items": {"type": "string", "pattern": _REGION}},
        "groups": {"type": "array", "items": text, "description": "Names of Auto Scaling groups."},
        "tags": {"type": "object", "propertyNames": {"minLength": 1, "maxLength": 128}, "additionalProperties": {"type": "string"}},
        "exclude": {
            "type": "array",
            "items": {"type": "string", "pattern": "^([^t]|t$|t[^a]|ta$|ta[^g]|tag$|tag[^:]|tag:[^=])"},
            "description": "Groups that are left alone: names, patterns such as system-*, or tag:KEY=VALUE.",
        },
        "queue_url": url,
        "endpoint_url": url,
        "launch": {"enum": list(LAUNCHES), "default": "auto"},
        "prices": {
            "type": "object",
            "propertyNames": {"pattern": f"^[^/]+(/({'|'.join(MARKETS)}))?$"},
            "additionalProperties": dollars,
        },
    }


def _override() -> Schema:
    """An entry of `pools` that changes what was found."""
    offered = _offering()["properties"]
    price = _object({**{key: offered[key] for key in PRICE_KEYS}, "price": {"type": "number", "minimum": 0}}, required=["type", "price"])
    known = _pool()["properties"]
    fields = {key: known[key] for key in OVERRIDE_KEYS}
    return _object({**fields, "offerings": _optional({"type": "array", "items": price})}, required=["name"])


def _span() -> Schema:
    return {"anyOf": [_duration(), {"type": "array", "minItems": 3, "maxItems": 3, "items": _duration()}]}


def _steering() -> Schema:
    # YAML reads a bare off as a boolean.
    return {"enum": [*STEERINGS, False], "description": "How pods come to the machines that they are promised."}


def _name() -> Schema:
    return {"type": "string", "pattern": _LABEL_VALUE}


def _pool() -> Schema:
    return {
        **_object(
            {
                "name": {"type": "string", "pattern": _LABEL_VALUE},
                "chooser": _optional({"enum": list(CHOOSERS), "default": "buyer"}),
                "min": _optional({**_count("Machines."), "default": 0}),
                "max": _optional(_count("Machines; left out: no limit.")),
                "spare": _optional({"anyOf": [_count("Machines."), _object({"gpus": _count("GPUs.")}, required=["gpus"])]}),
                "idle_after": _optional({**_duration(), "default": "10m"}),
                "unready_after": _optional({**_duration(), "default": "45m"}),
                "steering": _optional(_steering()),
                "min_gpus_per_pod": _optional({**_count("GPUs; smaller pods are kept off."), "default": 0}),
                "labels": _optional(_labels()),
                "taints": _optional({"type": "array", "items": _taint()}),
                "startup_taints": _optional({"type": "array", "items": _taint()}),
                "priority": _optional({"type": "integer", **_INT32, "default": 0, "description": "Higher is first."}),
                "arch": _optional({"enum": list(ARCHITECTURES)}),
                "zones": _optional(_names("zone")),
                "markets": _optional({"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": list(MARKETS)}}),
                "types": _optional(_names("instance type")),
                "offerings": _optional({"type": "array", "minItems": 1, "items": _offering()}),
                "budgets": _optional({"type": "array", "items": _budget()}),
            },
            required=["name"],
        ),
        "anyOf": [_given("types"), _given("offerings")],
    }


def _offering() -> Schema:
    return _object(
        {
            "type": {"type": "string", "pattern": _LABEL_VALUE},
            "market": _optional({"enum": list(MARKETS)}),
            "zone": _optional({"type": "string", "pattern": _LABEL_VALUE}),
            "price": _optional({"type": "number", "minimum": 0, "description": "US dollars per hour; 0 only where market is reserved."}),
            "resources": _optional(
                {
                    "type": "object",
                    "propertyNames": {"pattern": "^(cpu|memory|ephemeral-storage|pods|hugepages-.+|[^/]+/[^/]+)$"},
                    "additionalProperties": {"type": ["string", "number"]},
                    "description": "What a node offers to pods, as Kubernetes quantities.",
                }
            ),
        },
        required=["type"],
    )


def _limits() -> Schema:
    keys: dict[str, Schema] = {
        "gpus": _optional(_count("GPUs of all pools.")),
        "machines": _optional(_count("Machines of all pools.")),
        "dollars_per_hour": _optional({"type": "number", "minimum": 0}),
        "machines_per_minute": _optional(_count("Machines bought in any minute.")),
        "fruitless_per_hour": _optional(
            {**_count("Machines of a pool that may come to nothing within an hour before no more are bought there."), "minimum": 1}
        ),
    }
    return {"anyOf": [_object(keys), {"const": "none"}]}


def _budget() -> Schema:
    return {
        **_object(
            {
                "nodes": {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": 999_999_999},
                        {"type": "string", "pattern": "^((100|[0-9]{1,2})%|[0-9]{1,9})$"},
                    ]
                },
                "reasons": _optional({"type": "array", "items": {"enum": list(REASONS)}}),
                "schedule": _optional({"type": "string", "minLength": 1, "description": "Cron, UTC."}),
                "duration": _optional(_duration()),
            },
            required=["nodes"],
        ),
        "anyOf": [_given("schedule", "duration"), {"properties": {"schedule": {"type": "null"}, "duration": {"type": "null"}}}],
    }


def _taint() -> Schema:
    text = {"type": "string", "pattern": f"^[^=:]+(=[^=:]*)?:({'|'.join(EFFECTS)})$"}
    fields = {
        "key": {"type": "string", "pattern": _QUALIFIED},
        "value": _optional({"type": "string", "pattern": f"^$|{_LABEL_VALUE}"}),
        "effect": {"enum": list(EFFECTS)},
    }
    return {"anyOf": [text, _object(fields, required=["key", "effect"])]}


def _labels() -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": _QUALIFIED, "not": {"const": "kubernetes.io/hostname"}},
        "additionalProperties": {"type": "string", "pattern": f"^$|{_LABEL_VALUE}"},
    }


def _object(properties: Schema, *, required: list[str] | None = None) -> Schema:
    return {"type": "object", "additionalProperties": False, "properties": properties, "required": required or []}


def _optional(schema: Schema) -> Schema:
    """A key without a value counts as left out."""
    return {"anyOf": [schema, {"type": "null"}]}


def _given(*keys: str) -> Schema:
    """All of ``keys`` are there, with a value."""
    return {"required": list(keys), "properties": {key: {"not": {"type": "null"}} for key in keys}}


def _names(what: str) -> Schema:
    item = {"type": "string", "pattern": _LABEL_VALUE}
    return {"type": "array", "minItems": 1, "uniqueItems": True, "items": item, "description": f"Each {what} once."}


def _count(description: str) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "description": description}


def _duration() -> Schema:
    return {"anyOf": [{"type": "string", "pattern": _DURATION}, {"const": 0}], "description": "A Go duration: 90s, 10m, 1h30m."}
