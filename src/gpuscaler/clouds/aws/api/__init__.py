"""AWS's API: calls, errors by cause, spelling."""
