"""What the API server does to objects of certain kinds: admission, defaults, evictions, subresources."""
