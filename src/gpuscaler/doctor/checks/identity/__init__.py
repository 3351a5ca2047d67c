"""Who programs are: Secrets, keys of clouds, ServiceAccounts and rights."""
