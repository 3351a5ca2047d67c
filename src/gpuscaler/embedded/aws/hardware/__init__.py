"""The hardware of a region: zones, types, capacity, and reasons why there is none."""
