"""The machines of an account as Nodes of a cluster."""
