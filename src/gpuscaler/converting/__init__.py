"""Converts files of Kubernetes objects: old API versions, prometheus-adapter, and autoscalers of nodes.

:mod:`.folder` converts the texts of files, :mod:`.converter` the objects in them. :mod:`.versions` knows what changed between versions of
kinds, :mod:`.adapters` what prometheus-adapter needs to become ``gpuscaler metrics``, :mod:`.autoscalers` the flags of other autoscalers.
Each change is noted, so that a person can check it. Pure: the command reads and writes the files.
"""
