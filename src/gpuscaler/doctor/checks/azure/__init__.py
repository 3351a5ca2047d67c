"""Checks of Azure subscriptions."""
