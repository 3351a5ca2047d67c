"""Requests of kubectl beside those for objects: tables, discovery, OpenAPI, warnings, access reviews."""
