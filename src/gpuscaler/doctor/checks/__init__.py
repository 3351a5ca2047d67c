"""All checks, by area."""
