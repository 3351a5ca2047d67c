"""What a person fills in: texts in the files that stand for what neither the description nor gpuscaler knows."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import gpuscaler
from gpuscaler.generating.aws.names import ACCOUNT_PLACEHOLDER
from gpuscaler.generating.azure.names import CLIENT_ID_OUTPUT
from gpuscaler.generating.description.resolved import Description
from gpuscaler.generating.description.settings import ControllerSettings
from gpuscaler.generating.kubernetes.values import CLIENT_ID_PLACEHOLDER, SUBSCRIPTION_PLACEHOLDER
from gpuscaler.generating.readme.layout import paragraph
from gpuscaler.generating.writing.files import GeneratedFile


@dataclass(frozen=True, slots=True, kw_only=True)
class Placeholder:
    """``what`` belongs in its place; ``key`` of the description sets it in all files, if it can be known before the cluster exists."""

    what: str
    key: str = ""


_KNOWN: Final[Mapping[str, Placeholder]] = {
    ACCOUNT_PLACEHOLDER: Placeholder(
        what="the id of your AWS account, which `aws sts get-caller-identity --query Account --output text` prints",
        key="cluster.account",
    ),
    ControllerSettings().image: Placeholder(what="the repository of the image in your registry", key="controller.image"),
    SUBSCRIPTION_PLACEHOLDER: Placeholder(
        what="the id of your subscription, which `az account show --query id --output tsv` prints", key="cluster.subscription"
    ),
    CLIENT_ID_PLACEHOLDER: Placeholder(
        what="the client id of gpuscaler's identity, once Terraform has made it: "
        f"`terraform -chdir=terraform output -raw {CLIENT_ID_OUTPUT}` prints it, and the step of the file fills it in"
    ),
}
#: Placeholders that no other module knows by name begin like this; the step of their file says what they stand for.
_UNNAMED: Final = "REPLACE-ME[A-Z0-9-]*"
_PATTERN: Final = re.compile("|".join((*map(re.escape, _KNOWN), _UNNAMED)))


def placeholders_of(files: Iterable[GeneratedFile]) -> dict[str, list[str]]:
    """Return the placeholders in texts and commands of the files, each with the paths of the files that have it."""
    found = dict[str, list[str]]()
    for file in files:
        for text in dict.fromkeys(_PATTERN.findall(f"{file.text(explain=False)}\n{file.apply}")):
            found.setdefault(text, []).append(file.path)
    return found


def fill_in_first(description: Description, files: Sequence[GeneratedFile]) -> Iterator[str]:
    """Yield the lines of the section about placeholders and the image."""
    image = f"{description.controller.image}:{gpuscaler.__version__}"
    found = placeholders_of(files)
    if found:
        yield from _table(found)
    yield from paragraph(
        "gpuscaler is installed from a clone of its repository, with an image that you build there and push to a registry which the nodes "
        "can pull from. `$GPUSCALER/docs/how-to/install.md` has other ways to build it."
    )
    yield from (
        "",
        "```sh",
        "# The folder of your clone. Later commands use it, too.",
        'GPUSCALER="$HOME/gpuscaler"',
        f'docker build --tag {image} "$GPUSCALER"',
        f"docker push {image}",
        "```",
        "",
    )


def _table(found: Mapping[str, list[str]]) -> Iterator[str]:
    keys = [known.key for text in found if (known := _KNOWN.get(text)) is not None and known.key]
    if keys:
        listed = " and ".join(f"`{key}`" for key in keys)
        yield from paragraph(
            f"The cleanest way: set {listed} in the description, and run `gpuscaler generate cluster` again. Otherwise, replace these "
            "texts in the files:"
        )
    else:
        yield "Replace these texts in the files:"
    yield from ("", "| text | replace it by | in | key of the description |", "|---|---|---|---|")
    for text, paths in found.items():
        known = _KNOWN.get(text, Placeholder(what="what the step of the file says"))
        key = f"`{known.key}`" if known.key else "none"
        yield f"| `{text}` | {known.what} | {', '.join(f'`{path}`' for path in paths)} | {key} |"
    yield ""
