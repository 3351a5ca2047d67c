"""How text is laid out in the README."""

import re
import textwrap

_WIDTH = 120
#: Stands for a space in code, where no line ends.
_KEPT = "\0"


def paragraph(text: str, head: str = "") -> list[str]:
    """Return the text in lines, with ``head``, such as "1. ", before the first. Code in backticks stays on one line."""
    kept = re.sub("`[^`]*`", lambda code: code[0].replace(" ", _KEPT), text)
    lines = textwrap.wrap(
        kept,
        _WIDTH,
        initial_indent=head,
        subsequent_indent=" " * len(head),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_KEPT, " ") for line in lines]
