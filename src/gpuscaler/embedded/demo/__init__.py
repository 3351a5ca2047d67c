"""The demo: a whole cluster in one process, the real controller on it over HTTP, work to do, and a spot market that runs dry."""
