"""The ledger: what was asked of a cloud and is not open yet, promises being kept, and removals under way."""
