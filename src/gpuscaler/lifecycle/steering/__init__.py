"""Steering: promised pods are bound to their machine before it opens to other pods."""
