"""``make base-image``: writes the current digest of the Dockerfile's base tag, on which later releases are built."""

import re
import sys
from datetime import UTC, datetime
from pathlib import Path

from tools.release.commands import require_program, run
from tools.release.image import BASE
from tools.release.source import Refused

TEXT = """\
# The base of the image that `make release` builds: the digest of {tag} on {day}, for all its platforms.
# `make base-image` updates it; this is the only way to get security fixes of Debian and Python.
{digest}
"""


def main() -> int:
    python = re.search(r"^ARG PYTHON=(\S+)$", Path("Dockerfile").read_text(), re.MULTILINE)
    try:
        if python is None:
            raise Refused("Dockerfile has no line ARG PYTHON=… with the base's tag")
        require_program("skopeo", why="reads digests from registries (on Debian: package skopeo)")
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
