"""prometheus-adapter and what belongs to it."""
