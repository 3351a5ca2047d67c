"""What happened, as Kubernetes Events and log lines."""
