"""Workloads and spot markets: read from published traces, recorded, or drawn."""
