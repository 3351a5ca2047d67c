"""Which groups are a cluster's, and what is wrong with them."""
