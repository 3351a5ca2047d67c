"""Finds out whether running pods can move elsewhere: in bulk if their rules allow it, otherwise one at a time with every filter."""
