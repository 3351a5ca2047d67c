"""What our HTTP servers share: TLS with live reload, health, logging, metrics."""
