"""Planning: pure decisions without I/O, clock or hidden randomness. The same input gives the same plan."""
