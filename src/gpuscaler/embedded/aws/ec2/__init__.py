"""EC2: its calls about instances and fleets, and what it says of itself."""
