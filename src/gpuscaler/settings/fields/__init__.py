"""Settings as a table, from which their reader, JSON Schema and reference tables are derived."""
