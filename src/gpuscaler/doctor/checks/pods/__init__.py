"""Checks of pods: where they fit, what they ask for, and what they keep alive."""
