"""The label that a node bears while it is emptied."""

#: Cloud controllers leave nodes with this label out of load balancers (Kubernetes 1.21 and later). The value says that it is ours, so that
#: nobody else's is taken off.
EXCLUDE_LABEL, EXCLUDE_VALUE = "node.kubernetes.io/exclude-from-external-load-balancers", "gpuscaler-leaving"
