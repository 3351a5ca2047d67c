"""Manifests of years ago, said in versions of the API that are served now.

:mod:`.converter` converts the objects of files, :mod:`.autoscalers`, :mod:`.workloads`, :mod:`.ingresses` and :mod:`.adapters` what the
versions of their kinds changed. Each change is noted, so that a person can check it.
"""
