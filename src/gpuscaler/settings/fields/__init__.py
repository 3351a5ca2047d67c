"""One table of settings, from which their reader, their JSON Schema and the tables of their reference are made."""
