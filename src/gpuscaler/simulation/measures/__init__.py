"""Measures of a replay: waits, shares, the fleet, lower bounds."""
