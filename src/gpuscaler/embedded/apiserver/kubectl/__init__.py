"""What kubectl asks for beside the objects: tables, discovery, OpenAPI, warnings, reviews of access."""
