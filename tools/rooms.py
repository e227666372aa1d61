#!/usr/bin/env python3
"""Draws the structure from the imports: rooms, arrows between them, circles, the longest files.

    python tools/rooms.py

A room is a folder of files; a file that lies beside folders is a room by itself. Every import
counts, also one inside a function.
"""

import ast
import collections
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
FLOORS = ("distrl", "programs", "launch")  # from the bottom up

Graph = Mapping[str, frozenset[str]]


def sources(root: Path = ROOT) -> list[str]:
    """Returns the files of the three floors, relative to the root, sorted."""
    return sorted(
        path.relative_to(root).as_posix()
        for floor in FLOORS
        for path in (root / floor).rglob("*.py")
        if not any(part.is_symlink() for part in path.parents)
    )


def module_name(path: str) -> str:
    """Returns the name under which the file at `path` is imported."""
    name = path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
    return name if name.split(".")[0] == "distrl" else f"distrl.{name}"


def room(path: str, root: Path = ROOT) -> str:
    """Returns the room of a file: its folder, or the file itself if it lies beside folders."""
    folder = path.rpartition("/")[0]
    beside = any(each.is_dir() and each.name != "__pycache__" for each in (root / folder).iterdir())
    return path.removesuffix(".py") if beside else folder


def files_imported(root: Path = ROOT) -> dict[str, frozenset[str]]:
    """Returns, for each file, the files that it imports."""
    files = sources(root)
    file_of = {module_name(path): path for path in files}
    graph = {}
    for path in files:
        imported = set()
        for node in ast.walk(ast.parse((root / path).read_text("utf-8"))):
            names: list[str] = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
                for alias in node.names:
                    full = f"{node.module}.{alias.name}"
                    names.append(full if full in file_of else node.module)
            imported.update(file_of[name] for name in names if name in file_of)
        graph[path] = frozenset(imported - {path})
    return graph


def rooms(files: Graph, root: Path = ROOT) -> dict[str, frozenset[str]]:
    """Returns the same between rooms."""
    room_of = {path: room(path, root) for path in files}
    graph: dict[str, set[str]] = collections.defaultdict(set)
    for path, imported in files.items():
        graph[room_of[path]].update(room_of[each] for each in imported)
    return {name: frozenset(others - {name}) for name, others in graph.items()}


def circles(graph: Graph) -> list[list[str]]:
    """Returns the groups of nodes that reach each other (Tarjan's strong components)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    components = []

    def visit(node: str) -> None:
        order[node] = lowest[node] = len(order)
        stack.append(node)
        for other in sorted(graph.get(node, ())):
            if other not in order:
                visit(other)
                lowest[node] = min(lowest[node], lowest[other])
            elif other in stack:
                lowest[node] = min(lowest[node], order[other])
        if lowest[node] == order[node]:
            component = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(component) > 1:
                components.append(sorted(component))

    for node in sorted(graph):
        if node not in order:
            visit(node)
    return components


def floors(graph: Graph) -> list[list[str]]:
    """Returns the nodes by height: those on the first row import only each other's lower rows.

    Raises:
      ValueError: there is a circle.
    """
    if circles(graph):
        raise ValueError(f"circles: {circles(graph)}")
    height: dict[str, int] = {}

    def of(node: str) -> int:
        if node not in height:
            height[node] = 1 + max((of(other) for other in graph.get(node, ())), default=-1)
        return height[node]

    rows: dict[int, list[str]] = collections.defaultdict(list)
    for node in sorted(graph):
        rows[of(node)].append(node)
    return [rows[row] for row in sorted(rows, reverse=True)]


def lengths(paths: Iterable[str], root: Path = ROOT) -> list[tuple[int, str]]:
    """Returns lines and paths, the longest file first."""
    counts = ((len((root / path).read_text("utf-8").splitlines()), path) for path in paths)
    return sorted(counts, reverse=True)


def main() -> None:
    """Prints the structure."""
    root = Path(sys.argv[1]).resolve() if len(sys.argv) > 1 else ROOT
    files = files_imported(root)
    graph = rooms(files, root)
    print(f"{len(files)} files, {sum(map(len, files.values()))} arrows between them")
    print(f"{len(graph)} rooms, {sum(map(len, graph.values()))} arrows between them")
    for what, each in (("files", files), ("rooms", graph)):
        print(f"circles of {what}: {circles(each) or 'none'}")
    print("\nlongest files:")
    for count, path in lengths(files, root)[:10]:
        print(f"  {count:4} {path}")
    if not circles(graph):
        print("\nrooms, each above all that it imports:")
        for row in floors(graph):
            print("  " + ", ".join(row))


if __name__ == "__main__":
    main()
