"""EC2: types, instances, launch templates, fleets, volumes, capacity and why there is none."""
