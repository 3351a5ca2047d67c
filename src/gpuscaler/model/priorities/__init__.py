"""Priorities of pools, in the format of the priority expander of Cluster Autoscaler."""
