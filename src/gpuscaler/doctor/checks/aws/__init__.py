"""Checks of an AWS account."""
