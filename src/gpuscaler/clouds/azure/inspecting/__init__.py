"""Reads what `gpuscaler doctor` needs from subscriptions, as far as the rights go, as plain data. Nothing is changed."""
