"""From a purchase to a ready node: orders, machines and nodes are matched, and machines that do not come are given up."""
