"""The endpoint: over HTTP, in memory, beside a cluster, with faults on demand."""
