"""gpuscaler: scales GPU capacity on Kubernetes, and explains every decision."""

__version__ = "0.1.0"
