"""Compares our HorizontalPodAutoscaler algorithm with kube-controller-manager's own controller."""
