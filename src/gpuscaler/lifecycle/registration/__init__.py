"""From a purchase to a node that is ready: orders, machines and nodes are matched, and what does not come is given up."""
