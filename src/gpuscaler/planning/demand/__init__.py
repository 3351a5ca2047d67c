"""Demand: pods that need a place, either pending or on machines that are being taken away."""
