"""Discovery of pools in subscriptions: reading of scale sets, agent pools, sizes, quotas and reservations; ownership; findings."""
