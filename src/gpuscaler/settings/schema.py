"""JSON Schema of pools files and run files, for editors and other programs.

It covers what a schema can express: keys, types, forms and ranges. Only the parser checks what needs more knowledge (whether a type exists,
its price, duplicate names, min against max).
"""

from gpuscaler.settings.fields.table import Schema, mapping, nullable, schema
from gpuscaler.settings.pools import override_schema, pool_schema
from gpuscaler.settings.pools_file import PolicySettings
from gpuscaler.settings.run_settings import ACCOUNT_CLOUDS, RunSettings


def pools_file_schema() -> Schema:
    """Return a schema of draft 2020-12."""
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "gpuscaler pools file or run file",
        **mapping({**schema(PolicySettings)["properties"], **schema(RunSettings)["properties"]}),
        "if": {"properties": {"cloud": {"enum": list(ACCOUNT_CLOUDS)}}, "required": ["cloud"]},
        "then": {"properties": {"pools": nullable({"type": "array", "items": override_schema()})}},
        "else": {"properties": {"pools": {"type": "array", "minItems": 1, "items": pool_schema()}}, "required": ["pools"]},
    }
