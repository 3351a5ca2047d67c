"""Files that people write: what is wrong with them, with the line and, where an edit of lines mends it, a patch."""
