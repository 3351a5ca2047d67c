"""``gpuscaler check-proof``: checks the lower bound of a plan, independently of the planner's searches."""

import sys
from pathlib import Path
from typing import TYPE_CHECKING

import click
import msgspec

if TYPE_CHECKING:
    from gpuscaler.planning.scale_up.draft.draft import Solved


def write_proof(path: str, solved: "Solved | None") -> None:
    """Write the problem and the duals behind a lower bound as JSON; ``null`` if nothing is bought."""
    try:
        Path(path).write_bytes(msgspec.json.format(msgspec.json.encode(solved), indent=1) + b"\n")
    except OSError as error:
        click.echo(f"{path}: saw {error.strerror}, expected a file that can be written (--proof)", err=True)
        sys.exit(2)


@click.command("check-proof")
@click.argument("file", type=click.Path(path_type=Path))
def check_proof(file: Path) -> None:
    """Check the proof in FILE, written by plan --proof. Exits with 0 if the bound holds, 1 if it does not, 2 if FILE is not a proof."""
    from gpuscaler.planning.mix.certificate import certify
    from gpuscaler.planning.scale_up.draft.draft import Solved

    try:
        solved = msgspec.json.decode(file.read_bytes(), type=Solved | None)
    except OSError as error:
        click.echo(f"{file}: saw {error.strerror}, expected a file made by gpuscaler plan --proof", err=True)
        sys.exit(2)
    except msgspec.DecodeError as error:
        click.echo(f"{file}: {error}; expected a file made by gpuscaler plan --proof", err=True)
        sys.exit(2)
    if solved is None or solved.problem is None:
        click.echo("The plan buys nothing, so there is nothing to prove.")
        return
    certificate = certify(solved.problem, solved.solution)
    claimed = solved.solution.lower_bound
    if certificate.bound < claimed * (1 - 1e-6):
        click.echo(
            f"The bound of ${claimed:.4f} per hour does NOT hold: {certificate.kind} holds pods worth "
            f"{certificate.worst:.6f} times its price."
        )
        click.echo(f"The bound that these duals prove is ${certificate.bound:.4f} per hour.")
        sys.exit(1)
    kinds = len(solved.problem.kinds)
    click.echo(f"The bound of ${claimed:.4f} per hour holds: none of the {kinds} kinds of machines holds pods worth more than its price.")
