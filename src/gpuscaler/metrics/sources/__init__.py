"""Where values come from: Prometheus, or exporters that are read directly."""
