"""Nodes that are not what they should be: not Ready, without their devices, or refusing pods that fit."""
