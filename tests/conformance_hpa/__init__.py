"""Our HorizontalPodAutoscaler algorithm against kube-controller-manager's own controller."""
