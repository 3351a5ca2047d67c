"""Records of the controller for people: Events, log lines, metrics, status, and decisions that can be replayed."""
