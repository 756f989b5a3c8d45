"""The five paths of CONTRIBUTING.md: each file exists and defines the functions that the path names."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
_FILE = re.compile(r"`(src/[\w/.]+)`: ")
_NAME = re.compile(r"`([A-Za-z_][\w%$]*(?:\.\w+)?)`")


def steps(text: str) -> list[tuple[str, list[str]]]:
    """Return each file that the paths name, with its functions."""
    section = text.partition("## Five paths through the code")[2].partition("\n## ")[0]
    parts = _FILE.split(section)[1:]
    return [(file, _NAME.findall(words.partition("\n\n")[0])) for file, words in zip(parts[::2], parts[1::2], strict=True)]


def defined(file: Path) -> set[str]:
    """Return the names of a module's functions, classes, methods and constants, or of the functions of a SQL file."""
    text = file.read_text()
    if file.suffix == ".sql":
        return set(re.findall(r"create or replace (?:function|procedure) trunkline\.([\w%$]+)\(", text))
    names: set[str] = set()
    for node in ast.parse(text).body:
        if isinstance(node, ast.Assign):
            names |= {target.id for target in node.targets if isinstance(target, ast.Name)}
        elif isinstance(node, ast.ImportFrom):
            names |= {alias.asname or alias.name for alias in node.names}
        elif isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            names.add(node.name)
            if isinstance(node, ast.ClassDef):
                methods = {each.name for each in node.body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}
                names |= methods | {f"{node.name}.{method}" for method in methods}
    return names


STEPS = steps((ROOT / "CONTRIBUTING.md").read_text())


def test_there_are_five_paths() -> None:
    section = (ROOT / "CONTRIBUTING.md").read_text().partition("## Five paths")[2].partition("\n## ")[0]
    assert section.count("?**") == 5
    assert len(STEPS) >= 15


@pytest.mark.parametrize(("file", "names"), STEPS, ids=[file for file, _ in STEPS])
def test_step(file: str, names: list[str]) -> None:
    assert (ROOT / file).exists(), file
    assert names, f"the step of {file} names no function"
    assert set(names) <= defined(ROOT / file), f"{file} does not define {set(names) - defined(ROOT / file)}"


def test_a_function_that_moved_is_noticed() -> None:
    [(file, names)] = steps(
        "## Five paths through the code\n\n1. `src/trunkline/errors.py`: `TrunklineError`, `gone`.\n\n## Rules"
    )
    assert (file, names) == ("src/trunkline/errors.py", ["TrunklineError", "gone"])
    assert set(names) - defined(ROOT / file) == {"gone"}
