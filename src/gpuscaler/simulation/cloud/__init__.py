"""The simulated cloud: offerings with capacity, prices, delays and failures, behind the same protocol as real clouds."""
