"""The JSON Schema of pools files and run files, for editors and other programs.

It says what a schema can say: keys, types, forms and ranges. What needs knowledge (whether a type exists, its price, names that are
used twice, min against max) only the parser says.
"""

from gpuscaler.model.offerings import MARKETS
from gpuscaler.model.pools import STEERINGS
from gpuscaler.settings.aws_file import OVERRIDE_KEYS, PRICE_KEYS
from gpuscaler.settings.fields.kinds import GO_DURATION, LABEL_VALUE
from gpuscaler.settings.fields.table import Schema, mapping, optional, schema
from gpuscaler.settings.pieces import EFFECTS, REASONS
from gpuscaler.settings.pools_file import ARCHITECTURES, CHOOSERS, PREFERENCES
from gpuscaler.settings.run_settings import RunSettings

_QUALIFIED = "^([a-z0-9]([a-z0-9-]*[a-z0-9])?(\\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*/)?[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?$"
_REGION = "^[a-z]{2,4}(-[a-z]+)+-[0-9]$"
_INT32 = {"minimum": -(2**31), "maximum": 2**31 - 1}


def pools_file_schema() -> Schema:
    """A schema of draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuscaler pools file or run file",
        **mapping(
            {
                "pools": optional({"type": "array"}),
                "limits": optional(_limits()),
                "region": optional({**LABEL_VALUE, "description": "Region of prices and labels."}),
                "preferences": optional({"enum": list(PREFERENCES), "default": "ignore"}),
                "schedulers": optional({**_names("scheduler"), "default": ["default-scheduler"]}),
                "steering": optional({**_steering(), "default": STEERINGS[0]}),
                "bind_schedulers": optional({**_names("scheduler"), "default": ["default-scheduler"]}),
                "priority_cutoff": optional({"type": "integer", **_INT32, "default": -10}),
                "min_saving": optional({"type": "number", "minimum": 0, "default": 0, "description": "US dollars per hour."}),
                "max_grace": optional({**GO_DURATION, "default": "1h", "description": "Longest time for a pod to save its work."}),
                **schema(RunSettings)["properties"],
            },
        ),
        "if": {"properties": {"cloud": {"const": "aws"}}, "required": ["cloud"]},
        "then": {"properties": {"pools": optional({"type": "array", "items": _override()})}},
        "else": {"properties": {"pools": {"type": "array", "minItems": 1, "items": _pool()}}, "required": ["pools"]},
    }


def _override() -> Schema:
    """An entry of `pools` that changes what was found."""
    offered = _offering()["properties"]
    price = mapping({**{key: offered[key] for key in PRICE_KEYS}, "price": {"type": "number", "minimum": 0}}, required=["type", "price"])
    known = _pool()["properties"]
    fields = {key: known[key] for key in OVERRIDE_KEYS}
    return mapping({**fields, "offerings": optional({"type": "array", "items": price})}, required=["name"])


def _steering() -> Schema:
    # YAML reads a bare off as a boolean.
    return {"enum": [*STEERINGS, False], "description": "How pods come to the machines that they are promised."}


def _name() -> Schema:
    return LABEL_VALUE


def _pool() -> Schema:
    return {
        **mapping(
            {
                "name": LABEL_VALUE,
                "chooser": optional({"enum": list(CHOOSERS), "default": "buyer"}),
                "min": optional({**_count("Machines."), "default": 0}),
                "max": optional(_count("Machines; left out: no limit.")),
                "spare": optional({"anyOf": [_count("Machines."), mapping({"gpus": _count("GPUs.")}, required=["gpus"])]}),
                "idle_after": optional({**GO_DURATION, "default": "10m"}),
                "unready_after": optional({**GO_DURATION, "default": "45m"}),
                "steering": optional(_steering()),
                "min_gpus_per_pod": optional({**_count("GPUs; smaller pods are kept off."), "default": 0}),
                "labels": optional(_labels()),
                "taints": optional({"type": "array", "items": _taint()}),
                "startup_taints": optional({"type": "array", "items": _taint()}),
                "priority": optional({"type": "integer", **_INT32, "default": 0, "description": "Higher is first."}),
                "arch": optional({"enum": list(ARCHITECTURES)}),
                "zones": optional(_names("zone")),
                "markets": optional({"type": "array", "minItems": 1, "uniqueItems": True, "items": {"enum": list(MARKETS)}}),
                "types": optional(_names("instance type")),
                "offerings": optional({"type": "array", "minItems": 1, "items": _offering()}),
                "budgets": optional({"type": "array", "items": _budget()}),
            },
            required=["name"],
        ),
        "anyOf": [_given("types"), _given("offerings")],
    }


def _offering() -> Schema:
    return mapping(
        {
            "type": LABEL_VALUE,
            "market": optional({"enum": list(MARKETS)}),
            "zone": optional(LABEL_VALUE),
            "price": optional({"type": "number", "minimum": 0, "description": "US dollars per hour; 0 only where market is reserved."}),
            "resources": optional(
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
        "gpus": optional(_count("GPUs of all pools.")),
        "machines": optional(_count("Machines of all pools.")),
        "dollars_per_hour": optional({"type": "number", "minimum": 0}),
        "machines_per_minute": optional(_count("Machines bought in any minute.")),
        "fruitless_per_hour": optional(
            {**_count("Machines of a pool that may come to nothing within an hour before no more are bought there."), "minimum": 1}
        ),
    }
    return {"anyOf": [mapping(keys), {"const": "none"}]}


def _budget() -> Schema:
    return {
        **mapping(
            {
                "nodes": {
                    "anyOf": [
                        {"type": "integer", "minimum": 0, "maximum": 999_999_999},
                        {"type": "string", "pattern": "^((100|[0-9]{1,2})%|[0-9]{1,9})$"},
                    ]
                },
                "reasons": optional({"type": "array", "items": {"enum": list(REASONS)}}),
                "schedule": optional({"type": "string", "minLength": 1, "description": "Cron, UTC."}),
                "duration": optional(GO_DURATION),
            },
            required=["nodes"],
        ),
        "anyOf": [_given("schedule", "duration"), {"properties": {"schedule": {"type": "null"}, "duration": {"type": "null"}}}],
    }


def _taint() -> Schema:
    text = {"type": "string", "pattern": f"^[^=:]+(=[^=:]*)?:({'|'.join(EFFECTS)})$"}
    fields = {
        "key": {"type": "string", "pattern": _QUALIFIED},
        "value": optional({"type": "string", "pattern": f"^$|{LABEL_VALUE['pattern']}"}),
        "effect": {"enum": list(EFFECTS)},
    }
    return {"anyOf": [text, mapping(fields, required=["key", "effect"])]}


def _labels() -> Schema:
    return {
        "type": "object",
        "propertyNames": {"pattern": _QUALIFIED, "not": {"const": "kubernetes.io/hostname"}},
        "additionalProperties": {"type": "string", "pattern": f"^$|{LABEL_VALUE['pattern']}"},
    }


def _given(*keys: str) -> Schema:
    """All of ``keys`` are there, with a value."""
    return {"required": list(keys), "properties": {key: {"not": {"type": "null"}} for key in keys}}


def _names(what: str) -> Schema:
    item = LABEL_VALUE
    return {"type": "array", "minItems": 1, "uniqueItems": True, "items": item, "description": f"Each {what} once."}


def _count(description: str) -> Schema:
    return {"type": "integer", "minimum": 0, "maximum": 2**31 - 1, "description": description}
