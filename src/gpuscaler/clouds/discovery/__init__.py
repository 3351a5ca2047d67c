"""What discovery has in common in all clouds: tags that describe nodes, exclusions, names, overrides, comparison with nodes, JSON."""
