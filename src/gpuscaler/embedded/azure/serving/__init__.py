"""The endpoint: over HTTP, beside a cluster, with throttling and faults on demand."""
