"""Workload controllers of the embedded cluster, as API clients: pods of Deployments, ReplicaSets, StatefulSets, DaemonSets and Jobs."""
