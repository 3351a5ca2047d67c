"""The machines that there are, those on their way, and those that could be bought."""
