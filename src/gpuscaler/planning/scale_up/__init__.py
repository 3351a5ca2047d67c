"""Finding a place for every pending pod: on what exists, then on what is bought."""
