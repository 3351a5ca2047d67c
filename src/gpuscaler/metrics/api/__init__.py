"""The aggregated API server: custom.metrics.k8s.io and external.metrics.k8s.io as kube-aggregator and its clients expect them."""
