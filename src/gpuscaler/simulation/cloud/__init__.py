"""The simulated cloud: offerings with capacity, prices, delays and failures, behind the protocol of real ones."""
