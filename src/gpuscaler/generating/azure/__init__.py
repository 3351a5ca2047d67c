"""The files of Azure: agent pools, roles and federated credentials in Terraform."""
