"""Reads YAML as a tree with lines, and collects all mistakes of a file."""
