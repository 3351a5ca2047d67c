"""The documents of the metrics APIs: discovery, OpenAPI, lists of values, statuses."""
