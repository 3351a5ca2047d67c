"""The draft of a plan: its rows, the pods placed on them, and its purchases."""
