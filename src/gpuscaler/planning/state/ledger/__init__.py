"""The ledger: orders and machines that are not open yet, promises, and removals in progress."""
