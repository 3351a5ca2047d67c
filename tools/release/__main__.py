"""``make release``: builds all parts of a release, from the last commit, into ``build/release``. Publishes nothing.

A part that cannot be built here is listed at the end with the reason; the others are built all the same, and the exit status is 1.
"""

import argparse
import platform
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tools.release import chart, commands, image, sbom, signing, sizes
from tools.release.source import Refused, Source, read

PARTS = ("wheel", "sdist", "image", "chart", "manifest", "sbom")


@dataclass(slots=True)
class Building:
    """A release in the making."""

    source: Source
    out: Path
    work: Path
    repository: str = ""
    base: str = ""
    built: image.Image | None = None
    made: list[str] = field(default_factory=list)
    lacking: list[str] = field(default_factory=list)

    def part(self, name: str, build: Callable[[], object]) -> None:
        try:
            build()
        except Refused as refused:
            self.lacking.append(f"{name}: {refused}")
        else:
            self.made.append(name)

    @property
    def digest(self) -> str:
        return self.built.digest if self.built else ""


def main(arguments: Sequence[str]) -> int:
    options = parse_arguments(arguments)
    out = options.out.absolute()
    shutil.rmtree(out, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix="gpuscaler-release-") as temporary:
        folder, work = Path(temporary) / "source", Path(temporary) / "work"
        folder.mkdir()
        work.mkdir()
        try:
            source = read(Path.cwd(), folder, wanted=options.version, tag=options.tag, draft=options.draft)
            if not options.sign and not options.draft:
                raise Refused("a release must be signed: expected SIGN=keyless (with cosign), SIGN=a private SSH key file, or SIGN=none")
        except Refused as refused:
            print(f"release: {refused}", file=sys.stderr)
            return 1
        out.mkdir(parents=True)
        building = Building(source=source, out=out, work=work, repository=options.image, base=options.base)
        build(building, options.parts or PARTS)
        if not building.lacking and options.sign not in {"", "none"}:
            building.part("signature", lambda: print(f"signed: {signing.sign(out, options.sign)}"))
    return report(building, draft=options.draft)


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make release", description=__doc__)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], metavar="PART", help=f"some of {' '.join(PARTS)}; default: all")
    parser.add_argument("--version", default="", help="the intended version; an error if the commit has another one")
    parser.add_argument("--tag", default="", help="the tag that was pushed")
    parser.add_argument("--image", default="", help="the repository that the image will be pushed to, for chart and manifest")
    parser.add_argument("--base", default="", help="the digest of a different base image, or `unpinned`")
    parser.add_argument("--sign", default="", help="`keyless`, `none`, or a private SSH key file")
    parser.add_argument(
        "--draft", action="store_true", help="a trial: no tag, no clean tree, no section in the changelog, no signature needed"
    )
    parser.add_argument("--out", type=Path, default=Path("build/release"))
    return parser.parse_args(arguments)


def build(building: Building, parts: Sequence[str]) -> None:
    """Build ``parts`` into ``building.out``, and the parts of every release: notes, and checksums of all files."""
    source, out, work = building.source, building.out, building.work
    where = {"image": building.repository}

    def build_image() -> None:
        building.built = image.build_image(source, out, work, base=building.base)
        print(f"image, unpacked:\n{sizes.table(sizes.parts_of_image(building.built.layout))}")

    def write_bills() -> None:
        sbom.of_wheel(source, out, work)
        if building.built:
            sbom.of_image(source, out, work, image=building.built)

    steps: dict[str, Callable[[], object]] = {
        "wheel": lambda: distribution(source, out, "wheel"),
        "sdist": lambda: distribution(source, out, "sdist"),
        # Before the parts that name it.
        "image": build_image,
        "chart": lambda: chart.pack_chart(source, out, digest=building.digest, **where),
        "manifest": lambda: chart.write_manifest(source, out, digest=building.digest, **where),
        "sbom": write_bills,
    }
    for name, step in steps.items():
        if name in parts:
            building.part(name, step)
    (out / f"gpuscaler-{source.version}.notes.md").write_text(f"{source.notes}\n")
    (out / f"gpuscaler-{source.version}.build.txt").write_text(circumstances(building))
    signing.write_sums(out)


def distribution(source: Source, out: Path, target: str) -> None:
    # From this environment, and so from the lock.
    command = (sys.executable, "-m", "hatchling", "build", "--target", target, "--directory", out)
    commands.run(*command, folder=source.folder, epoch=source.epoch)


def circumstances(building: Building) -> str:
    """Everything beside the commit that determines the bytes: equal circumstances give equal bytes."""
    lines = {
        "commit": building.source.commit,
        "SOURCE_DATE_EPOCH": str(building.source.epoch),
        "python": f"{platform.python_implementation()} {platform.python_version()} on {platform.system()} {platform.machine()}",
        "zlib": zlib.ZLIB_RUNTIME_VERSION,
    }
    if building.built:
        lines["buildah"] = commands.run("buildah", "--version", folder=building.work).strip()
        lines["base"] = building.base or image.base_digest(building.source.folder)
    if building.repository:
        lines["IMAGE"] = building.repository
    return "".join(f"{name}: {value}\n" for name, value in lines.items())


def report(building: Building, *, draft: bool) -> int:
    for file in sorted(building.out.iterdir()):
        print(f"{file.stat().st_size:>12}  {file.name}")
    release = f"{'a draft of ' if draft else ''}{building.source.version}, commit {building.source.commit[:12]}"
    if building.lacking:
        print(f"release: {release} is not complete, and not signed:", *building.lacking, sep="\n", file=sys.stderr)
        return 1
    print(f"{release}: {', '.join(building.made)} in {building.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
