"""The taints and the label that nodes of our pools bear for longer than it takes to open or to drain them."""
