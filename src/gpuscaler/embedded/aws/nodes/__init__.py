"""The instances of an account as Nodes of a cluster."""
