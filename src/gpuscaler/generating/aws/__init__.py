"""The files of AWS: ClusterConfigs of eksctl, InstanceGroups of kOps, Terraform, CloudFormation."""
