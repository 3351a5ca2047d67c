"""Buying and ending machines: requests, groups' desired capacity, activities, hooks."""
