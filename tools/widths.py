"""Check the width of Markdown: `python tools/widths.py`; `--fix` wraps paragraphs. Part of `make check`.

At most 110 columns, except for tables, code blocks, HTML and words that cannot be divided. Ruff checks Python.
"""

from __future__ import annotations

import re
import subprocess
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path

WIDTH = 110
# Generated.
LEFT_OUT = "docs/reference/"


def main(arguments: list[str]) -> int:
    listed = subprocess.run(["git", "ls-files", "*.md"], capture_output=True, text=True, check=True).stdout.split()
    count = 0
    for path in (Path(name) for name in listed if not name.startswith(LEFT_OUT)):
        text = path.read_text()
        if "--fix" in arguments and (wrapped := wrap(text)) != text:
            path.write_text(wrapped)
            text = wrapped
        for number, line in long_lines(text):
            count += 1
            print(f"{path}:{number}: {len(line)} columns, at most {WIDTH}")
    return min(count, 1)


def long_lines(text: str) -> Iterator[tuple[int, str]]:
    """Yield number and text of each line that is too wide and can be divided."""
    in_code = False
    for number, line in enumerate(text.split("\n"), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        kept = in_code or line.lstrip().startswith(("|", "<", "#"))
        if len(line) > WIDTH and not kept and " " in line.strip()[: WIDTH - (len(line) - len(line.lstrip()))]:
            yield number, line


def wrap(text: str) -> str:
    """Wrap the paragraphs and list items that have a line that is too wide."""
    lines = text.split("\n")
    for number, line in reversed(list(long_lines(text))):
        marker = re.match(r"\s*(?:[-*] |\d+\. |> )?", line)
        first = marker[0] if marker else ""
        rest = first if first.strip() == ">" else " " * len(first)
        end = number
        while end < len(lines) and _continues(lines[end], rest):
            end += 1
        words = " ".join([line[len(first) :], *(each[len(rest) :].strip() for each in lines[number:end])])
        lines[number - 1 : end] = textwrap.wrap(
            words, WIDTH, initial_indent=first, subsequent_indent=rest, break_long_words=False, break_on_hyphens=False
        )
    return "\n".join(lines)


def _continues(line: str, indent: str) -> bool:
    """Return true if a line belongs to the paragraph above it."""
    if not line.startswith(indent) or not line[len(indent) :].strip():
        return False
    return re.match(r"\s*(?:[-*+|>#]\s|```|\d+\. |!\[|:::|!!!|</?\w|<!--)", line[len(indent) :]) is None


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
