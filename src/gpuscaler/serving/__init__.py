"""Shared parts of the HTTP servers: TLS with live reload, health, logging, metrics."""
