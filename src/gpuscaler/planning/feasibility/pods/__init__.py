"""The two filters that look at other pods: affinity between pods, and topology spread."""
