"""Queues, and what AWS announces on them."""
