"""The formats that traces are published in, each as jobs: what a row or an entry means."""
