"""``make full [PARTS="soak e2e"]``: runs all checks, including slow ones. Parts continue after failures; the end is a table.

Writes ``build/full.txt`` and ``build/full.json``, with the commit and the result of each part, and the output of each part to
``build/full``. Results of earlier runs on the same commit stay in the table, so that the parts can be run one by one. Exits with 1 if any
result in the table is a failure.
"""

import json
import os
import platform
import re
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

#: The newest release of each minor version that can be compiled from the module proxy; the pinned one comes first.
RELEASES = ("1.35.4", "1.37.1", "1.36.3", "1.34.4", "1.33.13", "1.32.5", "1.31.1")
#: Name and make arguments of each part.
PARTS: tuple[tuple[str, ...], ...] = (
    ("test", "test"),
    ("check", "check"),
    ("package", "package"),
    ("release-check", "release-check"),
    ("audit", "audit"),
    ("demo", "demo"),
    ("conformance", "conformance"),
    ("oracle", "oracle"),
    ("kops", "kops"),
    ("mutants", "mutants"),
    ("charts", "charts"),
    ("soak", "soak", "RUNS=10000"),
    ("properties", "properties"),
    ("interpreters", "interpreters"),
    *((f"e2e-{release}", "e2e", f"KUBERNETES={release}") for release in RELEASES),
    ("bench", "bench"),
)
OUT = Path("build")
COUNTED = re.compile(r"\d+ (?:passed|failed)\b.* in ")


@dataclass(frozen=True, slots=True)
class PartResult:
    """The end of a part: its exit status, its duration, and its last line, or pytest's last summary line."""

    part: str
    command: str
    status: int
    seconds: int
    said: str


def main(wanted: Sequence[str]) -> int:
    chosen = [part for part in PARTS if not wanted or any(part[0] == name or part[0].startswith(f"{name}-") for name in wanted)]
    if unknown := [name for name in wanted if not any(part[0] == name or part[0].startswith(f"{name}-") for part in PARTS)]:
        print(f"saw parts {', '.join(unknown)}, expected some of {', '.join(part[0] for part in PARTS)}", file=sys.stderr)
        return 2
    about: dict[str, Any] = {
        "commit": output_of("git", "rev-parse", "HEAD"),
        "changed": output_of("git", "status", "--porcelain").splitlines(),
        "began": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": platform.python_version(),
        "cores": os.cpu_count(),
    }
    ended = earlier(about)
    for name, *arguments in chosen:
        ended[name] = run(name, arguments)
        # After each part, so that an interrupted run keeps its results so far.
        write(about, in_order(ended))
    print(f"\n{(OUT / 'full.txt').read_text()}", end="")
    return 1 if any(part.status for part in ended.values()) else 0


def earlier(about: dict[str, Any]) -> dict[str, PartResult]:
    """The results so far by part, if they are of the same commit, unchanged then and now; ``began`` is when the first run began."""
    try:
        record = json.loads((OUT / "full.json").read_text())
    except FileNotFoundError:
        return {}
    same = ("commit", "changed", "python", "cores")
    if not about["commit"] or about["changed"] or any(record[name] != about[name] for name in same):
        return {}
    about["began"] = record["began"]
    return {part["part"]: PartResult(**part) for part in record["parts"]}


def in_order(ended: Mapping[str, PartResult]) -> list[PartResult]:
    return [ended[name] for name, *_ in PARTS if name in ended]


def output_of(*command: str) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run(name: str, arguments: Sequence[str]) -> PartResult:
    """Run a part and stream its output."""
    command = ["make", "--no-print-directory", *arguments]
    print(f"\n== {name}: {' '.join(command)}", flush=True)
    log = OUT / "full" / f"{name}.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    began, last_line, counted = time.monotonic(), "", ""
    # With CI set, missing dependencies of tests are failures: a part that skips its own subject has shown nothing.
    environ = {**os.environ, "CI": "true"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL, env=environ)
    with process, log.open("wb") as log_file:
        assert process.stdout is not None
        for data in process.stdout:
            log_file.write(data)
            line = data.decode(errors="replace")
            print(line, end="", flush=True)
            last_line = line.strip() or last_line
            counted = line.strip(" =\n") if COUNTED.search(line) else counted
    return PartResult(name, " ".join(command), process.returncode, round(time.monotonic() - began), counted or last_line)


def write(about: Mapping[str, Any], ended: Sequence[PartResult]) -> None:
    lines = [f"{name}: {about[name]}" for name in ("commit", "began", "python", "cores")]
    if about["changed"]:
        lines.append("changed since that commit: " + ", ".join(line[3:] for line in about["changed"]))
    lines.append("")
    width = max(len(part.part) for part in ended)
    for part in ended:
        result = "passed" if part.status == 0 else f"FAILED ({part.status})"
        lines.append(f"{part.part:<{width}}  {result:<12}  {part.seconds:>6} s  {part.said[:160]}")
    (OUT / "full.txt").write_text("\n".join(lines) + "\n")
    record = {**about, "parts": [asdict(part) for part in ended]}
    (OUT / "full.json").write_text(json.dumps(record, indent=2, ensure_ascii=False) + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
