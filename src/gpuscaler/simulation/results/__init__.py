"""Results of replays: figures, charts, reports, comparisons."""
