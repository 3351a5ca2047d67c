"""Scale-up: places every pending pod, on existing machines first, then on new ones."""
