"""Converts old manifests to API versions that are served now.

:mod:`.converter` converts the objects of files; :mod:`.autoscalers`, :mod:`.workloads`, :mod:`.ingresses` and :mod:`.adapters` convert what
changed between versions of their kinds. Each change is noted, so that a person can check it.
"""
