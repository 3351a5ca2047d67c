"""Pure decisions: same input, same plan. No I/O, no clock, no hidden randomness."""
