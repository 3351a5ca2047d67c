"""Launch templates and the nodes they produce: types, user data, labels, taints."""
