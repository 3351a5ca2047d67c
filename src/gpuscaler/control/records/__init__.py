"""What people want to know of the controller: Events, log lines, metrics, status, and decisions that can be replayed."""
