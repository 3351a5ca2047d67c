"""The policies that decide in a replay: gpuscaler's planner, models of other autoscalers, fixed fleets."""
