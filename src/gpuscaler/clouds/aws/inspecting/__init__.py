"""Reads what `gpuscaler doctor` needs from an account, as far as the rights go, as plain data. Nothing is changed."""
