"""The API server: requests, the store behind them, watches, and faults on demand."""
