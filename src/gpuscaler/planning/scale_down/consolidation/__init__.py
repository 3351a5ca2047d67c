"""Consolidation: removes machines to save money. Their pods move to machines that stay, or to cheaper ones that are bought for them."""
