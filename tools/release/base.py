"""``make base-image``: writes the digest that the tag of the Dockerfile's base image has today, which later releases are built on."""

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from tools.release.commands import needed, run
from tools.release.image import BASE
from tools.release.source import Refused

TEXT = """\
# The base of the image that `make release` builds: what {tag} meant on {day}, for every platform that it has.
# `make base-image` writes what it means today; security fixes of Debian and Python come only so.
{digest}
"""


def main() -> int:
    python = re.search(r"^ARG PYTHON=(\S+)$", Path("Dockerfile").read_text(), re.MULTILINE)
    try:
        if python is None:
            raise Refused("Dockerfile has no line ARG PYTHON=…, which says the base's tag")
        needed("skopeo", why="asks registries for digests; Debian has it in skopeo")
        tag = f"python:{python[1]}-slim"
        digest = run("skopeo", "inspect", "--format", "{{.Digest}}", f"docker://{tag}", folder=Path.cwd()).strip()
    except Refused as refused:
        print(f"base-image: {refused}", file=sys.stderr)
        return 1
    BASE.write_text(TEXT.format(tag=tag, day=datetime.now(UTC).date(), digest=digest))
    print(f"{BASE}: {tag} is {digest}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
