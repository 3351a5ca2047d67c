"""The demo: a whole cluster in one process, the real controller managing it over HTTP, jobs to run, and a spot market that runs dry."""
