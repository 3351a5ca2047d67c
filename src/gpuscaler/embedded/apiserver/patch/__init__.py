"""The forms in which clients write changes: JSON and merge patches, strategic merge, server-side apply."""
