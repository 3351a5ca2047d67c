"""The hardware of an account: sizes, capacity, quotas, and reasons why there is no machine."""
