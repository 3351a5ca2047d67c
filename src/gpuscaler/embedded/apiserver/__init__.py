"""The API server: requests, the store behind them, watches, and what goes wrong on demand."""
