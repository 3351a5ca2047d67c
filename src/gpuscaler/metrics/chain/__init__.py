"""The chain of a metric, link by link: exporter, scrape, rule, API, HorizontalPodAutoscaler."""
