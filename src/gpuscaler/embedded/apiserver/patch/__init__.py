"""Forms of patches: JSON and merge patches, strategic merge, server-side apply."""
