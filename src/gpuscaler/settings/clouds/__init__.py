"""The keys of a run file that apply to one cloud."""
