"""Checksums of all files of a release, and a signature over them."""

import hashlib
import os
from pathlib import Path

from tools.release.commands import require_program, run
from tools.release.source import Refused

SUMS = "SHA256SUMS"
#: Namespace of signatures by a key file: one that was made for another purpose does not verify.
NAMESPACE = "gpuscaler-release"


def write_sums(out: Path) -> Path:
    """Write input for ``sha256sum --check``, for every file of ``out`` in order of names."""
    lines = [f"{hashlib.sha256(path.read_bytes()).hexdigest()}  {path.name}\n" for path in sorted(out.iterdir()) if path.name != SUMS]
    target = out / SUMS
    target.write_text("".join(lines))
    return target


def sign(out: Path, how: str) -> str:
    """Sign the checksums: ``keyless`` with cosign and the identity of the caller, else with the SSH key file ``how``.

    Returns a description of the signature. Raises :exc:`Refused`.
    """
    if how == "keyless":
        require_program("cosign", why="signs without a key (or name a key file: SIGN=~/.ssh/id_ed25519)")
        # The identity comes from the forge's token, or from a login in the browser.
        tokens = {name: value for name, value in os.environ.items() if name.startswith(("ACTIONS_ID_TOKEN_", "SIGSTORE_", "COSIGN_"))}
        run("cosign", "sign-blob", "--yes", "--bundle", f"{SUMS}.sigstore.json", SUMS, folder=out, more=tokens)
        return f"{SUMS}.sigstore.json, keyless"
    key = Path(how).expanduser().absolute()
    if not key.is_file():
        raise Refused(f"saw SIGN={how}, which is not a file; expected a private SSH key, `keyless` or `none`")
    require_program("ssh-keygen", why="signs with a key file (on Debian: package openssh-client)")
    run("ssh-keygen", "-Y", "sign", "-q", "-n", NAMESPACE, "-f", key, SUMS, folder=out, more=agent())
    return f"{SUMS}.sig, by {key.name}"


def agent() -> dict[str, str]:
    """The agent for keys in an agent or on a token, which are named by their public half."""
    return {"SSH_AUTH_SOCK": os.environ["SSH_AUTH_SOCK"]} if "SSH_AUTH_SOCK" in os.environ else {}
