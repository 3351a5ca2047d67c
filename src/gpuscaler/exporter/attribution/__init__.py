"""Finds the containers that use each GPU: from the kubelet's allocations, and on shared GPUs from the cgroups of the processes."""
