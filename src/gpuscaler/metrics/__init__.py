"""GPU metrics for the HorizontalPodAutoscaler: the custom and external metrics APIs, their rules, and where values come from."""
