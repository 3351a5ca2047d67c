"""Fields of objects in files: which there are, and which values they take."""
