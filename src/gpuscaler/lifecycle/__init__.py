"""Everything between plans, as pure functions: registration, promised pods, interruptions, termination, orders from plans."""
