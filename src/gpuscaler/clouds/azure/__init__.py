"""Scale sets of Azure and agent pools of AKS as pools."""
