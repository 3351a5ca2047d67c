"""Pod classes that differ in size only are placed together: in which order, on what exists first, and whether their spread holds."""
