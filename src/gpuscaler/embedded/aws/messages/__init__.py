"""Queues, and the notices that AWS sends to them."""
