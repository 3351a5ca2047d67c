"""The files of the cluster itself: values of charts, device plugin, classes, budgets, quotas, example workloads."""
