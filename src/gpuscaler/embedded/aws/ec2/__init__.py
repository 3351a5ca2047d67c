"""EC2: calls about instances and fleets, and descriptions of types, zones and prices."""
