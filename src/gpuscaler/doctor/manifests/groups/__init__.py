"""Groups of machines in files: ClusterConfigs of eksctl, InstanceGroups of kOps, API models of acs-engine."""
