"""The formats of published traces: turn each row or entry into a job."""
