"""The exporter of one node: measures what each GPU does through its driver, and finds the pod that uses it."""
