"""A plan that is being made: its rows, what was placed on them, and what it buys."""
