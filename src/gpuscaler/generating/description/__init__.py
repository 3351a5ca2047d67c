"""The description of a cluster (``cluster.yaml``): its keys, its reader, and the node groups that follow from it."""
