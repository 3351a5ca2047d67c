"""Azure's Scheduled Events: read on the machine itself, and reported on its node and on the exporter's page."""
