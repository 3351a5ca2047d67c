"""How text is laid out in the README."""

import textwrap

_WIDTH = 120


def paragraph(text: str, head: str = "") -> list[str]:
    """Return the text in lines, with ``head``, such as "1. ", before the first."""
    return textwrap.wrap(
        text,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
