"""Check that no package uses private names of another one: `python tools/private_access.py`.

A use is `x._name` where the module itself does not define `_name`, and another package of the project does. A package
is a folder below `src/trunkline`, together with its generated twin.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

SOURCE = Path(__file__).resolve().parent.parent / "src" / "trunkline"
NAMEDTUPLE = {"_replace", "_asdict", "_fields", "_make"}


def defined(tree: ast.AST) -> set[str]:
    """Return the private names that a module defines: functions, classes, attributes of self, variables and slots."""
    names: set[str] = set()
    for node in ast.walk(tree):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                names.add(name)
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                names.add(name)
            case ast.AnnAssign(target=ast.Name(id=name)):
                names.add(name)
            case ast.Assign(targets=targets):
                names.update(target.id for target in targets if isinstance(target, ast.Name))
    return {name for name in names if name.startswith("_") and not name.startswith("__")} - NAMEDTUPLE


def uses(tree: ast.AST) -> Iterator[tuple[int, str, str]]:
    """Yield line, name and text of each private attribute that is not used on self or cls."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and node.attr.startswith("_") and not node.attr.startswith("__"):
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "cls")):
                yield node.lineno, node.attr, ast.unparse(node)
        elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("trunkline."):
            for alias in node.names:
                if alias.name.startswith("_") and not alias.name.startswith("__"):
                    yield node.lineno, alias.name, f"from {node.module} import {alias.name}"


def violations(source: Path = SOURCE) -> list[str]:
    trees = {path.relative_to(source): ast.parse(path.read_text()) for path in sorted(source.rglob("*.py"))}
    own = {path: defined(tree) for path, tree in trees.items()}
    owners: dict[str, set[str]] = {}
    for path, names in own.items():
        for name in names:
            owners.setdefault(name, set()).add(path.parts[0])
    return [
        f"{path}:{line}: {text}"
        for path, tree in trees.items()
        for line, name, text in uses(tree)
        if name not in own[path] and owners.get(name, set()) - {path.parts[0]}
    ]


if __name__ == "__main__":
    lines = violations()
    print("\n".join(lines), file=sys.stderr)
    sys.exit(bool(lines))
