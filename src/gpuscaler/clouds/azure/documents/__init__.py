"""Readers of Azure's documents: clusters, agent pools, scale sets, machines, sizes, quotas, capacity reservations."""
