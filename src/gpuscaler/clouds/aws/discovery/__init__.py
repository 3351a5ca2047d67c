"""Finds the groups that belong to a cluster, and problems with them."""
