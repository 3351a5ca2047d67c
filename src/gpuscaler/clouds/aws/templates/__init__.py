"""Launch templates and what nodes of them will be: types, user data, labels, taints."""
