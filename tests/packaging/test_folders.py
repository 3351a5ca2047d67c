"""Folders: they contain few files, and the parts of planning and of the lifecycle depend on each other in few layers."""

import ast
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

import pytest

SOURCES = Path(__file__).parents[2] / "src"
#: Folders with files of one kind each: commands, parts of a protocol, objects.
LONG = ("gpuscaler/cli", "gpuscaler/kube", "gpuscaler/model")
MOST_FILES = 12

Imports = Mapping[str, frozenset[str]]


def module_of(path: Path) -> str:
    parts = path.relative_to(SOURCES).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def imported(path: Path, modules: frozenset[str]) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ImportFrom) and node.module:
            for alias in node.names:
                inner = f"{node.module}.{alias.name}"
                yield inner if inner in modules else node.module


@cache
def imports_within(package: str) -> Imports:
    """Return the imports within a top-level package, by module."""
    paths = {module_of(path): path for path in (SOURCES / "gpuscaler" / package).rglob("*.py")}
    modules = frozenset(paths)
    return {name: frozenset(imported(path, modules)) & modules - {name} for name, path in paths.items()}


def between_parts(imports: Imports) -> Imports:
    """Return the imports between the files and top-level folders of the package."""
    part = {name: ".".join(name.split(".")[:3]) for name in imports}
    dependencies: dict[str, set[str]] = {name: set() for name in part.values()}
    for name, others in imports.items():
        dependencies[part[name]] |= {part[other] for other in others} - {part[name]}
    return {name: frozenset(others) for name, others in dependencies.items()}


def height(imports: Imports) -> int:
    """Return the number of layers. Fails if there is an import cycle."""
    heights: dict[str, int] = {}

    def of(name: str, above: tuple[str, ...]) -> int:
        assert name not in above, f"saw a circle: {' imports '.join((*above[above.index(name) :], name))}"
        if name not in heights:
            heights[name] = 1 + max((of(other, (*above, name)) for other in imports[name]), default=0)
        return heights[name]

    return max(of(name, ()) for name in imports)


def test_no_folder_has_too_many_files() -> None:
    folders = [path for path in (SOURCES / "gpuscaler").rglob("*") if path.is_dir() and str(path.relative_to(SOURCES)) not in LONG]
    files = {folder: [path for path in folder.glob("*.py") if path.name != "__init__.py"] for folder in folders}

    assert {str(folder.relative_to(SOURCES)): len(names) for folder, names in files.items() if len(names) > MOST_FILES} == {}


@pytest.mark.parametrize(("package", "floors", "chain"), [("planning", 6, 21), ("lifecycle", 6, 10)])
def test_parts_of_a_top_level_package_depend_on_each_other_in_few_layers(package: str, floors: int, chain: int) -> None:
    imports = imports_within(package)

    assert height(between_parts(imports)) <= floors
    assert height(imports) <= chain


@pytest.mark.parametrize("package", sorted(path.name for path in (SOURCES / "gpuscaler").iterdir() if (path / "__init__.py").exists()))
def test_parts_of_a_top_level_package_have_no_import_cycles(package: str) -> None:
    assert height(between_parts(imports_within(package)))


def test_an_import_cycle_is_detected() -> None:
    with pytest.raises(AssertionError, match="a imports b imports a"):
        height({"a": frozenset({"b"}), "b": frozenset({"a"})})
