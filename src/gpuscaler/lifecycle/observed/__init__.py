"""Observations, joined once for all later stages: nodes with the cloud's list, promised pods with their nodes, live nodes by type."""
