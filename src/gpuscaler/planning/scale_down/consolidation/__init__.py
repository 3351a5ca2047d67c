"""Machines that are removed to save money: their pods go to machines that stay, or to cheaper ones that are bought for them."""
