"""Files as trees of values with reasons, and their texts: YAML and HCL."""
