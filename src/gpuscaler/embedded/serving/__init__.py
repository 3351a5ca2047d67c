"""The embedded cluster put together and served: over HTTP with TLS, or in memory."""
