"""The simulated cluster: its queue, its scheduler, its machines on their way, and what an autoscaler sees of it."""
