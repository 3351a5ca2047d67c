"""Node templates: the labels, taints and resources that a new node of a scale set or an agent pool has."""
