"""Wire formats of bodies, replies and selectors."""
