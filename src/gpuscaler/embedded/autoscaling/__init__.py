"""The controller of HorizontalPodAutoscalers: planning's algorithm, with the questions, objects and words of kube-controller-manager's."""
