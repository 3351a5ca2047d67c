"""Controllers of workloads for the embedded cluster, API clients only: pods of Deployments, ReplicaSets, StatefulSets, DaemonSets, Jobs."""
