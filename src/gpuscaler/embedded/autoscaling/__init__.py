"""The controller of HorizontalPodAutoscalers: planning's algorithm, with the queries, objects and messages of kube-controller-manager."""
