"""Column generation: the linear relaxation over patterns, its bound, and integer solutions from it."""
