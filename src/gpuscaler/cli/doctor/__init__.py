"""``gpuscaler doctor``: what it reads, its subcommands, and its output."""
