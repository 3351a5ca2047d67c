"""The kinds that the how-to about ``gpuscaler doctor`` says to read are those that it reads."""

import re
from pathlib import Path

from gpuscaler.cli.doctor.reading import OTHERS
from gpuscaler.kube.resources import WATCHED

PAGE = (Path(__file__).parents[2] / "docs/how-to/find-mistakes.md").read_text()


def kinds_in(command: str) -> set[str]:
    """The kinds, as ``kubectl`` names them, in the code block of ``command``."""
    block = next(block for block in re.findall(r"```sh\n(.*?)```", PAGE, re.DOTALL) if command in block)
    return set(re.findall(r"(?<=[,= ])([a-z.0-9]+)(?=[,\n ])", block.replace("\\\n", "")))


def test_the_commands_name_all_kinds_that_are_always_there_except_secrets() -> None:
    read = {f"{kind.plural}.{kind.group}".rstrip(".") for kind in (*WATCHED, *OTHERS) if not kind.optional} - {"secrets"}

    assert kinds_in("kubectl get --all-namespaces") >= read
    assert kinds_in("kubectl create clusterrole") >= read
