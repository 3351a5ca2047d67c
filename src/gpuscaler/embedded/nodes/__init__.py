"""Machines that become nodes: kubelets, devices and their plugins, leases, the scheduler, and the cloud they come from."""
