"""Azure Resource Manager: credentials, calls, operations, throttling, errors by cause, resource ids."""
