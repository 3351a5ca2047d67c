"""What can be wrong with a template."""


class TemplateError(ValueError):
    """A template that cannot be read, or that cannot be filled in with what it was given. The text says what and where."""
