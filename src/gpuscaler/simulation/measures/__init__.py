"""What a replay is measured by: waits, shares, the fleet, lower bounds."""
