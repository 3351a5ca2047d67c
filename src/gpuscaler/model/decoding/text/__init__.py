"""Text to objects, a piece at a time: JSON, YAML, streams of either."""
