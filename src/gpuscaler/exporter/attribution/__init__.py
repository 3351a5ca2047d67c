"""For whom each GPU works: from what the kubelet says was allocated, and from the cgroups of the processes on a GPU that is shared."""
