"""Example workloads that the generated groups have machines for."""
