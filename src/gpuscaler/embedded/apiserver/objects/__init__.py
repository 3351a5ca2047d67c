"""The API server's treatment of particular kinds: admission, defaults, evictions, subresources."""
