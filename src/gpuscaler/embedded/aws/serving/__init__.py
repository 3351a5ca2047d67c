"""The endpoint: over HTTP, in memory, beside a cluster, with what goes wrong on demand."""
