"""Autoscalers of nodes: their workloads are read with their flags, and a run file is written that does the same."""
