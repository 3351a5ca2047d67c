"""The error that concerns a whole input, not one object in it."""


class InputError(Exception):
    """A file that cannot be read on: ``path`` is the place in it, ``seen`` what is there, ``expected`` what should be."""

    def __init__(self, file: str, path: str, seen: str, expected: str) -> None:
        super().__init__(f"{file}: {path}: saw {seen}, expected {expected}" if path else f"{file}: saw {seen}, expected {expected}")
        self.file = file
        self.path = path
        self.seen = seen
        self.expected = expected
