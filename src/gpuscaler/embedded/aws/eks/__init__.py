"""EKS: managed node groups, and what EKS does to their groups and nodes."""
