"""The four filters that look at volumes: restrictions, limits, binding and zones."""
