"""Check that SQL text in Python is only in db/calls and the few modules below: `python tools/sql_text.py`.

Part of `make check`. A statement is a string that begins like one, or a literal that is passed to `execute`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

PACKAGE = Path(__file__).resolve().parent.parent / "src" / "trunkline"
ALLOWED = (
    "db/calls/",
    "db/sync/",  # generated
    "db/pool.py",  # settings of a new connection
    "db/query.py",  # runs the statements of db/calls
    "sql/",  # installs and upgrades the schema
    "server/console/copying.py",  # texts to copy, which are not run
    "embedded/ownership.py",  # administers a cluster as its superuser
)
STATEMENT = re.compile(
    r"\s*(?:select\s|with \w+ as|insert into\s|update [\w.]+ set\s|delete from\s|call [\w.]+\(|copy [\w.(]"
    r"|listen \w|notify \w|lock table|truncate\s|set (?:local|session|search_path)\b|(?:create|alter|drop|grant) \w)"
)


def main() -> int:
    findings = [
        f"{path.relative_to(PACKAGE.parent.parent)}:{line}: {text.strip()[:60]!r}"
        for path in sorted(PACKAGE.rglob("*.py"))
        if not str(path.relative_to(PACKAGE)).startswith(ALLOWED)
        for line, text in statements(path.read_text())
    ]
    for finding in findings:
        print(f"{finding}: move this statement to db/calls")
    return 1 if findings else 0


def statements(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each SQL statement in a module."""
    tree = ast.parse(source)
    executed = {
        id(node.args[0])
        for node in ast.walk(tree)
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("execute", "executemany")
        and node.args
    }
    # Docstrings, and the parts of f-strings, which are read as a whole.
    skipped = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    skipped |= {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if id(node) in skipped or not isinstance(node, ast.Constant | ast.JoinedStr):
            continue
        text = _literal(node)
        if STATEMENT.match(text) or (id(node) in executed and text):
            yield node.lineno, text


def _literal(node: ast.Constant | ast.JoinedStr) -> str:
    """Return the text of a string; in an f-string, `x` in place of each value."""
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "x" for part in node.values)
    if isinstance(node.value, bytes):
        return node.value.decode(errors="replace")
    return node.value if isinstance(node.value, str) else ""


if __name__ == "__main__":
    sys.exit(main())
