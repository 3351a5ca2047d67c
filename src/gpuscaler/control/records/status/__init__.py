"""Answers to people and programs: status, why, pages, metrics, findings."""
