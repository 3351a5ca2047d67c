"""The error for a whole input, as opposed to a single object in it."""


class InputError(Exception):
    """Reading of a file cannot continue: ``path`` is the place in it, ``seen`` and ``expected`` describe its content."""

    def __init__(self, file: str, path: str, seen: str, expected: str) -> None:
        super().__init__(f"{file}: {path}: saw {seen}, expected {expected}" if path else f"{file}: saw {seen}, expected {expected}")
        self.file = file
        self.path = path
        self.seen = seen
        self.expected = expected
