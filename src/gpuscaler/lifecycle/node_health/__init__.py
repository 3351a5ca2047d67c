"""Nodes that are not healthy: not Ready, without their devices, or refusing pods that should fit."""
