"""Events of the controller, as Kubernetes Events and log lines."""
