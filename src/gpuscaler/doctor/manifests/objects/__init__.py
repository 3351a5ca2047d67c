"""Objects of Kubernetes in files, and values of charts that make them."""
