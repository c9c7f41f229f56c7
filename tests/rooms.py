"""The rooms of the house and the arrows between them: `python -m tests.rooms` prints both.

A room is a folder with Python files, an arrow an import from a file of one folder in another, also
one by name (`load("featstore...")`), with which the command line waits until it needs a module.
"""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping
from graphlib import CycleError, TopologicalSorter
from pathlib import Path

ROOT = Path(__file__).parents[1]
Arrows = Mapping[tuple[str, str], int]


def rooms() -> dict[str, int]:
    """The number of files in each room, by its folder."""
    found: defaultdict[str, int] = defaultdict(int)
    for path in (ROOT / "featstore").rglob("*.py"):
        found[_room(path)] += 1
    return dict(sorted(found.items()))


def arrows() -> Arrows:
    """The number of files in a room that import from another, by both rooms."""
    files: defaultdict[tuple[str, str], set[Path]] = defaultdict(set)
    for path in (ROOT / "featstore").rglob("*.py"):
        for target in _imported(path):
            if (room := _room(target)) != _room(path):
                files[_room(path), room].add(path)
    return {pair: len(importers) for pair, importers in sorted(files.items())}


def cycle(between: Arrows) -> list[str]:
    """Rooms that import each other in a circle; empty if every arrow goes down."""
    graph: defaultdict[str, set[str]] = defaultdict(set)
    for importer, imported in between:
        graph[importer].add(imported)
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def _imported(path: Path) -> Iterator[Path]:
    """The files of the package that a file imports from."""
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "featstore":
            for name in node.names:
                yield _file(f"{node.module}.{name.name}") or _existing(str(node.module))
        elif isinstance(node, ast.Import):
            ours = [name.name for name in node.names if name.name.split(".")[0] == "featstore"]
            yield from map(_existing, ours)
        elif isinstance(node, ast.Call) and getattr(node.func, "id", "") == "load":
            # Texts that name no module are of a `load` that reads something else.
            names = [arg.value for arg in node.args if isinstance(arg, ast.Constant)]
            yield from (found for name in names if (found := _file(str(name))))


def _file(module: str) -> Path | None:
    place = ROOT.joinpath(*module.split("."))
    found = [path for path in (place.with_suffix(".py"), place / "__init__.py") if path.exists()]
    return found[0] if found else None


def _existing(module: str) -> Path:
    # The compiled kernels are no Python file; they stand in the folder of their stub.
    return _file(module) or ROOT.joinpath(*module.split(".")).with_suffix(".pyi")


def _room(path: Path) -> str:
    return str(path.relative_to(ROOT).parent)


if __name__ == "__main__":
    between = arrows()
    for room, num_files in rooms().items():
        below = [imported for importer, imported in between if importer == room]
        print(f"{room} ({num_files} files): {', '.join(below)}")
    print(f"{len(rooms())} rooms, {len(between)} arrows, cycle: {cycle(between) or 'none'}")
