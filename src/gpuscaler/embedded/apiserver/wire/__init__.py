"""Bodies, replies and selectors as they are on the wire."""
