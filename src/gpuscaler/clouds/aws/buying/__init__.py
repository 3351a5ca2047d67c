"""Buying and ending machines: requests, desired capacity of groups, activities, hooks."""
