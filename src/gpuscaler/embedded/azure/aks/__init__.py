"""The provider Microsoft.ContainerService: AKS clusters, their agent pools and machines."""
