"""Sources of metric values: Prometheus, or exporters that are scraped directly."""
