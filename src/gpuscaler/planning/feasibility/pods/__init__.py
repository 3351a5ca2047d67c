"""The two filters that depend on other pods: inter-pod affinity and topology spread."""
