"""What a region can launch: zones, types, capacity, and why there is none."""
