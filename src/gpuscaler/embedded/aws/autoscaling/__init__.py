"""Auto Scaling: groups, the launches and ends that they start by themselves, hooks, refreshes, warm pools."""
