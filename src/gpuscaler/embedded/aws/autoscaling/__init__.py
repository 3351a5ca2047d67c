"""Auto Scaling: groups, what they launch and end by themselves, hooks, refreshes, warm pools."""
