"""Errors in templates."""


class TemplateError(ValueError):
    """A template that cannot be parsed, or not rendered with the given values. The text says what is wrong and where."""
