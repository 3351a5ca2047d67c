"""EKS: managed node groups, and the actions of EKS on their groups and nodes."""
