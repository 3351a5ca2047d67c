"""The simulated cluster: its queue, its scheduler, its ordered machines, and an autoscaler's view of it."""
