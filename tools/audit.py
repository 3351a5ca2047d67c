"""``make audit``: checks workflows for unsafe settings, and locked packages for withdrawals and known vulnerabilities.

Exits with 1 if something was found, and with 3 if nothing was found but some checks could not run: the result is then incomplete.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

#: The files that users, developers and releases install from. The others are parts of these.
LOCKS = ("requirements/runtime.txt", "requirements/dev.txt", "requirements/release.txt")
WORKFLOWS = Path(".github")
WITHDRAWN = re.compile(r"^warning: `(?P<pin>[^`]+)` is yanked(?: \(reason: \"(?P<why>.*)\"\))?", re.MULTILINE)


@dataclass(slots=True)
class Findings:
    problems: list[str] = field(default_factory=list)
    unchecked: list[str] = field(default_factory=list)


def run_tool(*command: str | Path) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)


def check_workflows(findings: Findings) -> None:
    """Run zizmor on the files alone, offline."""
    done = run_tool("zizmor", "--offline", "--no-progress", "--color=never", WORKFLOWS)
    if done.returncode:
        findings.problems.append(f"{WORKFLOWS}: zizmor ended with {done.returncode}:\n{done.stdout.strip()}\n{done.stderr.strip()}")


def check_withdrawn(lock: str, findings: Findings) -> None:
    """Find packages that their authors withdrew ("yanked"), according to the index that packages are installed from."""
    with tempfile.TemporaryDirectory() as nothing_installed:
        flags = ("--no-config", "--color", "never", "pip", "install", "--dry-run", "--require-hashes", "--no-deps")
        done = run_tool("uv", *flags, "--target", nothing_installed, "--requirement", lock)
    if done.returncode:
        findings.unchecked.append(f"{lock}: withdrawn packages; uv printed: {done.stderr.strip()[-500:]}")
    for match in WITHDRAWN.finditer(done.stderr):
        findings.problems.append(f"{lock}: {match['pin']} was withdrawn: {match['why'] or 'no reason given'}")


def check_vulnerabilities(lock: str, findings: Findings) -> None:
    """Find known vulnerabilities, according to the database of the package index."""
    done = run_tool(
        "pip-audit", "--disable-pip", "--require-hashes", "--progress-spinner", "off", "--format", "json", "--requirement", lock
    )
    try:
        packages = json.loads(done.stdout)["dependencies"]
    except (ValueError, KeyError):
        findings.unchecked.append(f"{lock}: vulnerabilities; pip-audit ended with {done.returncode}: {done.stderr.strip()[-500:]}")
        return
    findings.problems += vulnerabilities(lock, packages)
    if skipped := [package["name"] for package in packages if "skip_reason" in package]:
        names = ", ".join(skipped[:5])
        findings.unchecked.append(
            f"{lock}: vulnerabilities of {len(skipped)} of {len(packages)} packages, unknown to the database: {names}"
        )


def vulnerabilities(lock: str, packages: Sequence[dict[str, object]]) -> Iterator[str]:
    for package in packages:
        advisories = package.get("vulns")
        for advisory in advisories if isinstance(advisories, list) else ():
            mended = ", ".join(advisory.get("fix_versions") or ()) or "no version yet"
            yield f"{lock}: {package['name']} {package['version']} has {advisory['id']}, fixed in {mended}"


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="make audit", description=__doc__)
    parser.add_argument("--no-advisories", action="store_true", help="skip the query of the vulnerability database")
    parser.add_argument("locks", nargs="*", default=LOCKS)
    options = parser.parse_args(arguments)
    findings = Findings()
    if WORKFLOWS.exists():
        check_workflows(findings)
    for lock in options.locks:
        check_withdrawn(lock, findings)
        if not options.no_advisories:
            check_vulnerabilities(lock, findings)
    for line in findings.problems:
        print(f"found: {line}")
    for line in findings.unchecked:
        print(f"not checked: {line}")
    if findings.problems:
        return 1
    if findings.unchecked:
        print("audit: nothing found, but some checks could not run")
        return 3
    less = "; vulnerabilities were not checked" if options.no_advisories else ""
    print(f"audit: nothing found in {', '.join((str(WORKFLOWS), *options.locks))}{less}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
