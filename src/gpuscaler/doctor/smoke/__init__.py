"""The smoke test of ``gpuscaler doctor --smoke``: a Job with one GPU, and what the cluster shows about it."""
