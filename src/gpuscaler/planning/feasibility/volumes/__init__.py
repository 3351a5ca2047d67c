"""The four volume filters: restrictions, limits, binding and zones."""
