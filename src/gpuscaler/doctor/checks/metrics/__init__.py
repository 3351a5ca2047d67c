"""Checks of the metrics APIs and of the autoscalers that use them."""
