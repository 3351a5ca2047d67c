"""Writes the files that set up a cluster for gpuscaler, from a short description. A person reviews and applies them."""
