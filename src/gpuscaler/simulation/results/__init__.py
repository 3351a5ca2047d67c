"""What comes of replays: figures, charts, reports, comparisons."""
