"""What is seen, joined once for all that follows: nodes with the cloud's list, promised pods with their nodes, live nodes by type."""
