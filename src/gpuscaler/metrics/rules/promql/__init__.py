"""PromQL, as far as must be understood to prove that one query serves many objects.

Source: Prometheus' documentation of its query language.
"""
