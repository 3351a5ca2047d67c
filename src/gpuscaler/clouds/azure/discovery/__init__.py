"""Discovery of pools in subscriptions: parts of an account, ownership, offerings, findings."""
