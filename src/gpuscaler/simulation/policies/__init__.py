"""The policies that decide in a replay: gpuscaler's planner, other autoscalers as they document themselves, fixed fleets."""
