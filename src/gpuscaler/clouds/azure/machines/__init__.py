"""The machines of scale sets and agent pools as instances."""
