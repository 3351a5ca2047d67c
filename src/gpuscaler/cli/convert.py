"""``gpuscaler convert``: converts old manifests to API versions that are served now."""

import os
import re
import stat
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import click

from gpuscaler.cli.printing import escape_controls

if TYPE_CHECKING:
    from gpuscaler.converting.folder import Conversion

#: The names of files that are read in folders.
_ENDINGS = (".yaml", ".yml", ".json")
#: The largest file that is read, in bytes: etcd holds no object of more than 1.5 MB, and a file has a few thousand at most.
_LARGEST = 64 * 2**20
_LISTED = f"files that end with {', '.join(_ENDINGS[:-1])} or {_ENDINGS[-1]}"
_STANDARD_INPUT = "standard input"
_RUN_FILE_MODE = 0o644


class _Source(NamedTuple):
    """A file that is read: ``name`` is the one in messages, ``relative`` the one below the folder of the output."""

    path: Path
    name: str
    relative: Path


class _Skipped(NamedTuple):
    """What is not read in a folder. ``failed`` says that it may have been an object."""

    text: str
    failed: bool = False


#: The files to write, with their content and mode.
_Targets = dict[Path, tuple[bytes, int]]


class _UnreadableError(Exception):
    """A file that is not read; the text says why."""


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(path_type=Path, allow_dash=True))
@click.option("--output", type=click.Path(path_type=Path), metavar="DIR", help="Write each file below DIR, under its own name.")
@click.option(
    "--run-file",
    type=click.Path(path_type=Path),
    metavar="FILE",
    help="Write the run file that does what an autoscaler in FILES did. Default with --output: DIR/gpuscaler/values.yaml.",
)
@click.option("--force", is_flag=True, help="Overwrite files that have another content.")
@click.option("--image", default="", help="Image that replaces prometheus-adapter. Default: gpuscaler of this version.")
def convert(*, files: tuple[Path, ...], output: Path | None, run_file: Path | None, force: bool, image: str) -> None:
    """Print the objects of FILES (- for standard input) in API versions that clusters serve now; list the changes on standard error.

    Of folders, all files that end with .yaml, .yml or .json are read. HorizontalPodAutoscalers become autoscaling/v2, workloads apps/v1,
    Ingresses networking.k8s.io/v1, APIServices and roles v1. Containers of prometheus-adapter run gpuscaler metrics instead, with the same
    flags and rules. Convert and apply all files together.

    Cluster Autoscaler and its ancestors by OpenAI and for acs-engine become a run file: each flag without a counterpart is listed.
    """
    # Imported here, so that other commands start without YAML.
    from gpuscaler import __version__
    from gpuscaler.converting.folder import convert_files

    if output is not None and Path("-") in files:
        raise click.UsageError("saw - with --output, expected files, which have names; redirect the output instead")
    skipped: list[_Skipped] = []
    sources = {source.name: source for file in files for source in _sources(file, output, skipped)}
    texts = []
    for source in sources.values():
        try:
            texts.append((source.name, _read(source)))
        except _UnreadableError as error:
            if source.path in files:
                _refuse(f"{source.name}: saw {error}, expected a file of text")
            skipped.append(_Skipped(f"{source.name}: left out: saw {error}, expected a file of text", failed=True))
    carry = output is not None or run_file is not None
    done = convert_files(texts, image=image or f"gpuscaler:{__version__}", carry=carry, own_image=image)
    _refuse_useless(done, files, skipped)
    run_files = _run_files(done, run_file, output)
    targets = dict(run_files)
    if output is not None:
        targets |= _targets(done, sources, output, targets)
    _check(targets, sources, force=force)
    for target, (data, mode) in targets.items():
        _write(target, data, mode)
    if output is None:
        click.echo(done.stream, nl=False)
    written = (f"{target}: the run file, in values of the chart; gpuscaler validate {target} checks it" for target in run_files)
    for line in (*map(str, done.messages), *(item.text for item in skipped), *written):
        click.echo(escape_controls(line), err=True)
    sys.exit(1 if done.failed or any(item.failed for item in skipped) else 0)


def _refuse(message: str) -> None:
    click.echo(escape_controls(message), err=True)
    sys.exit(2)


def _refuse_useless(done: "Conversion", files: Iterable[Path], skipped: Iterable[_Skipped]) -> None:
    """Refuse a named file that cannot be read in full, since what is printed would lack objects, and files without any object."""
    from gpuscaler.converting.kinds import RUN_FILE

    named = {_STANDARD_INPUT if str(file) == "-" else str(file) for file in files}
    for message in done.messages:
        if message.unreadable and message.file in named:
            reason = message.text.removeprefix("left out: ")
            _refuse(f"{message.file}:{message.line}: saw invalid YAML, expected Kubernetes objects: {reason}")
    # A folder that this command wrote may have no object left but the run file.
    is_done = (
        bool(done.messages)
        and all(RUN_FILE in message.text for message in done.messages)
        and not named & {file.name for file in done.files}
    )
    if done.objects == 0 and (done.messages or not done.files) and not is_done:
        for line in (*map(str, done.messages), *(item.text for item in skipped)):
            click.echo(escape_controls(line), err=True)
        _refuse(f"{', '.join(map(str, files))}: saw no Kubernetes object, expected one at least; of folders, {_LISTED} are read")


def _sources(file: Path, output: Path | None, skipped: list[_Skipped]) -> Iterator[_Source]:
    """The files that are read for an argument, in order. What is left out in folders is added to ``skipped``."""
    if not file.is_dir():
        yield _Source(file, _STANDARD_INPUT if str(file) == "-" else str(file), Path(file.name))
        return
    written = output.resolve() if output is not None else None

    def unreadable(error: OSError) -> None:
        skipped.append(_Skipped(f"{error.filename}: left out: saw {error.strerror}, expected a readable folder", failed=True))

    for folder, folders, names in os.walk(file, onerror=unreadable):
        at = Path(folder)
        set_aside = {name: reason for name in sorted(folders) if (reason := _why_not(at / name))}
        folders[:] = sorted(name for name in folders if name not in set_aside and (at / name).resolve() != written)
        for name in sorted(names):
            if not name.endswith(_ENDINGS):
                continue
            if reason := _why_not(at / name):
                set_aside[name] = reason
            else:
                yield _Source(at / name, str(at / name), (at / name).relative_to(file))
        skipped += [_Skipped(f"{at / name}: left out: saw {reason}") for name, reason in set_aside.items()]


def _why_not(path: Path) -> str:
    """Why something in a folder is not read; empty if it is."""
    if path.name.startswith("."):
        return "a name that begins with a dot"
    if path.is_symlink():
        return "a symbolic link, which is not followed; name its target"
    # A pipe would wait for a writer, and a device may never end.
    return "" if path.is_dir() or path.is_file() else "neither a file nor a folder"


def _read(source: _Source) -> str:
    """The text of a file. Raises :class:`_UnreadableError`."""
    try:
        with click.open_file("-" if source.name == _STANDARD_INPUT else str(source.path), "rb") as stream:
            data: bytes = stream.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise _UnreadableError(f"more than {_LARGEST // 2**20} MiB")
        return data.decode("utf-8")
    except OSError as error:
        raise _UnreadableError(str(error.strerror)) from error
    except UnicodeDecodeError as error:
        raise _UnreadableError(f"the byte 0x{error.object[error.start]:02x}, which is not UTF-8") from error


def _run_files(done: "Conversion", run_file: Path | None, output: Path | None) -> _Targets:
    """The run files of autoscalers, with where they go."""
    if run_file is not None:
        if len(done.carried) > 1:
            titles = ", ".join(autoscaler.title for autoscaler in done.carried)
            _refuse(f"--run-file: saw {len(done.carried)} autoscalers, {titles}, expected one; convert each alone, or use --output")
        return {run_file: (done.carried[0].text.encode(), _RUN_FILE_MODE)} if done.carried else {}
    targets: _Targets = {}
    if output is None:
        return targets
    for autoscaler in done.carried:
        # Below a folder of its own: kubectl apply --filename DIR does not look there.
        own = "" if len(done.carried) == 1 else f"-{re.sub('[^A-Za-z0-9]+', '-', autoscaler.title).strip('-').lower()}-{autoscaler.index}"
        target = output / "gpuscaler" / f"values{own}.yaml"
        _check_place(target, output)
        targets[target] = (autoscaler.text.encode(), _RUN_FILE_MODE)
    return targets


def _targets(done: "Conversion", sources: dict[str, _Source], output: Path, taken: _Targets) -> _Targets:
    """The converted files, with where they go."""
    targets: _Targets = {}
    names: dict[Path, str] = dict.fromkeys(taken, "the run file")
    for file in done.files:
        if not file.text:
            continue
        source, target = sources[file.name], output / sources[file.name].relative
        if target in names:
            _refuse(f"{target}: saw two files for it, {names[target]} and {file.name}; convert them into different folders")
        _check_place(target, output)
        names[target] = file.name
        # What others may not read, such as a Secret, stays so.
        targets[target] = (file.text.encode(), stat.S_IMODE(source.path.stat().st_mode))
    return targets


def _check_place(target: Path, output: Path) -> None:
    if link_below(output, target) is not None or not target.resolve().is_relative_to(output.resolve()):
        _refuse(f"{target}: saw a symbolic link, expected a file below {output}; remove the link")


def link_below(output: Path, target: Path) -> Path | None:
    """Return the first symbolic link on the way from the folder ``output``, which may be one, to ``target`` in it: nothing follows it."""
    way = [output.joinpath(*target.relative_to(output).parts[:count]) for count in range(1, len(target.relative_to(output).parts) + 1)]
    return next((path for path in way if path.is_symlink()), None)


def _check(targets: _Targets, sources: dict[str, _Source], *, force: bool) -> None:
    """Refuse to write anything if one of the files cannot be written."""
    inputs = {identity for source in sources.values() if (identity := _identity(source.path))}
    for target, (data, _) in targets.items():
        # By what it is, not by its name: a hard link is the same file.
        if (identity := _identity(target)) is not None and identity in inputs:
            _refuse(f"{target}: saw a file that is read, expected another place for the output")
        if target.is_dir():
            _refuse(f"{target}: saw a folder, expected a file; remove it or choose another place")
        if target.exists() and not target.is_file():
            _refuse(f"{target}: saw neither a file nor a folder, expected a file; choose another place")
        if not force and target.exists() and target.read_bytes() != data:
            _refuse(f"{target}: saw a file with another content, expected none; give --force to overwrite it, or choose another place")


def _identity(path: Path) -> tuple[int, int] | None:
    """Device and number of a file; None if there is none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def _write(target: Path, data: bytes, mode: int) -> None:
    """Write a file with its mode from the beginning, in place of what is there. Nothing is written through a link."""
    new = target.with_name(f".{target.name}.{os.getpid()}")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        # A name that exists, even as a link, is refused; and renaming replaces a link, not its target.
        descriptor = os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | getattr(os, "O_NOFOLLOW", 0), 0o600)
        try:
            with os.fdopen(descriptor, "wb") as stream:
                stream.write(data)
                os.fchmod(stream.fileno(), mode)
            new.replace(target)
        except OSError:
            new.unlink(missing_ok=True)
            raise
    except OSError as error:
        _refuse(f"{target}: saw {error.strerror}, expected a place to write to")
