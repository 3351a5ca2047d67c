"""Terraform for AWS: the groups, the queue, the roles, and the cluster itself if it is to be created."""
