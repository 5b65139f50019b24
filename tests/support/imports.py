"""The imports between files of the packages, and circles among them; late and type-only imports count, too."""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

PACKAGES = ("testbed", "node_agent")
Graph = Mapping[str, Mapping[str, int]]
"""By module or wing: the number of statements that import each other one."""


def imports(root: Path) -> dict[str, Counter[str]]:
    """Return the imports between the modules below `root`, by dotted names; a package has the name of its folder."""
    paths = {_name(path.relative_to(root)): path for package in PACKAGES for path in (root / package).rglob("*.py")}
    return {
        module: Counter(to for to in _imported(path.read_text(encoding="utf-8"), paths) if to != module)
        for module, path in sorted(paths.items())
    }


def _name(path: Path) -> str:
    return ".".join(path.with_suffix("").parts).removesuffix(".__init__")


def _imported(text: str, known: Iterable[str]) -> Iterator[str]:
    """Yield the modules that each import statement of a file names, each once per statement."""
    for node in ast.walk(ast.parse(text)):
        found: set[str] = set()
        if isinstance(node, ast.Import):
            found = {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, "the packages use absolute imports"
            found = {node.module if f"{node.module}.{name.name}" not in known else f"{node.module}.{name.name}"
                     for name in node.names}  # fmt: skip
        yield from (each for each in found if each in known)


def wing_of(module: str) -> str:
    """Return the folder or the file of `testbed` that a module is in, or the name of its package."""
    package, _, rest = module.partition(".")
    return rest.partition(".")[0] if package == "testbed" and rest else package


def between_wings(graph: Graph) -> dict[str, Counter[str]]:
    """Return the imports between wings."""
    found: dict[str, Counter[str]] = {wing_of(module): Counter() for module in graph}
    for module, others in graph.items():
        for other, count in others.items():
            if wing_of(module) != wing_of(other):
                found[wing_of(module)][wing_of(other)] += count
    return found


def circles(graph: Graph) -> list[list[str]]:
    """Return the groups of names that reach each other, each sorted (Tarjan's algorithm)."""
    order: dict[str, int] = {}
    lowest: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(name: str) -> None:
        order[name] = lowest[name] = len(order)
        stack.append(name)
        for other in graph.get(name, ()):
            if other not in order:
                visit(other)
                lowest[name] = min(lowest[name], lowest[other])
            elif other in stack:
                lowest[name] = min(lowest[name], order[other])
        if lowest[name] == order[name]:
            group = stack[stack.index(name) :]
            del stack[stack.index(name) :]
            if len(group) > 1:
                found.append(sorted(group))

    for name in graph:
        if name not in order:
            visit(name)
    return sorted(found)
