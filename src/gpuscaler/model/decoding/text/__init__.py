"""Decoding of text to objects, piece by piece: JSON, YAML, streams of either."""
