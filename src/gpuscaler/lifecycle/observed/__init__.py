"""Observations that several stages need: nodes with the cloud's list, promised pods with their nodes, live nodes by type."""
