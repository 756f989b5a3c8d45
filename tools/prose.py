"""Check the language of docs, comments, docstrings and messages: `python tools/prose.py [FILE...]`.

Each pattern is a phrase that hides who does what, or what to do, and names what to write instead. Part of `make check`.
Add `prose: ok` to a line that must keep such a phrase.
"""

from __future__ import annotations

import io
import re
import subprocess
import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

PATTERNS = [
    (r"\banswer(?:s|ed|ing)?\b(?! (?:the|a|your|this|that|these|any) question)", "returns, responds, result"),
    (r'(?:^|[.;:(|]\s+|"""|--\s)[Ww]ho\s+[a-z]+(?![^.|]*\?)', "a noun: the caller, a worker, any role with"),
    (r"\b(?:[Ss]ome|[Nn]o|[Ee]very)body\b|\bwhoever\b", "a noun: another consumer, no worker"),
    (
        r"(?<!take )(?<!have )\b(?:a|the|one|another|each|first|second|last|next) looks?\b(?! like)",
        "read, query, poll, check",
    ),
    (r"\blook(?:s|ed|ing)? after\b|\blooks? for (?:itself|themselves)\b", "manage, poll"),
    (r"\b(?:is|are|was|were|be|been|not) told\b", "is notified, receives"),
    (r"(?<!, )\b[Ss]o (?:many|long|few)\b(?! (?:as|that))", "a number, or this many, that long"),
    (r"\b(?:go|goes|going|went) on\b(?![ -](?:to|sale|strike|demand))", "continue"),
    (r"\b(?:come|comes|came) (?:again|back)\b(?! (?:to this|here|later))", "is redelivered, reconnects"),
    (r"\bwhat (?:came|comes|became|becomes|has become) of\b", "the outcome of"),
    (r"\b(?:give|gives|gave|given|giving) (?:back|way|up its)\b", "release, return, free"),
    (r"\b(?:is|are|was|were) (?:not )?there(?=[.,;:)|]|$)", "exists, is installed"),
    (r"\bof (?:its|their|our|his) own\b(?! \w)", "its own X, a separate X"),
    (
        r"(?<!there )\b(?:is|are) no (?:job|message|address|secret|JSON|network|token|number|topic|queue|URL|row)s?\b",
        "is not a",
    ),
    (r"\bpasse[sd] over\b|\bpasses by\b|\bpassed by (?=what|[.,;])", "skips, exceeds"),
    (r"(?<!difference )\b(?:lies|stands) (?:in|below|beside|behind|at|on)\b", "is in, is stored in"),
    (r"\b(?:fares?|fared)\b|\bhow far it is\b", "status, progress"),
    (r"\bin (?:the|its|our|their|your) (?:own )?words\b|\bNo words\b", "in the caller's terms"),
    (r"\bunder way\b|\banew\b|\ball the same\b|\bin the hands of\b", "in flight, again, anyway, held by"),
    (r'^\s*"""(?:What|Who|Whom|Whether|How|Where|When|Why)\b(?! to\b)', "Return ..., or a noun phrase"),
    (r"\b(?:doors?|remed(?:y|ies)|dut(?:y|ies)|lanes?|barred|nobody waits)\b", "API, hint, task, level, denied"),
    (
        r"(?:_fail\('TL\d+', *(?:format\()?|raise \w+\(\s*f?)['\"](?:the )?(?:%s|[\w.]+) is (?:%s|%L|\{[^}]+\}|null)['\"]",
        "X must be ..., got Y",
    ),
]
COMPILED = [(re.compile(pattern, re.MULTILINE), instead) for pattern, instead in PATTERNS]
# Generated pages, twins and texts that are quoted from elsewhere; this file has the phrases themselves.
LEFT_OUT = re.compile(r"/sync/|^docs/reference/|^CHANGELOG|^tests/|^tools/prose\.py$|/migrations/00(?:20|21|22|23|24)")


def main(arguments: list[str]) -> int:
    listed = subprocess.run(["git", "ls-files"], capture_output=True, text=True, check=True).stdout.split()
    paths = [Path(name) for name in arguments or listed if not LEFT_OUT.search(name)]
    count = 0
    for path in paths:
        for number, text in prose(path):
            for pattern, instead in COMPILED:
                if (match := pattern.search(text)) and "prose: ok" not in text:
                    count += 1
                    print(f"{path}:{number}: {match[0].strip()!r}: write {instead}")
    if count:
        print(f"{count} phrases to rewrite", file=sys.stderr)
    return min(count, 1)


def prose(path: Path) -> Iterator[tuple[int, str]]:
    """Yield the lines that people read: Markdown outside of code blocks, else comments, docstrings and messages."""
    if path.suffix == ".md":
        yield from _markdown(path.read_text())
    elif path.suffix == ".py":
        for token in tokenize.generate_tokens(io.StringIO(path.read_text()).readline):
            if token.type in (tokenize.COMMENT, tokenize.STRING, getattr(tokenize, "FSTRING_MIDDLE", -1)):
                for index, line in enumerate(token.string.splitlines()):
                    # a string without a space is an identifier, such as a JSON field
                    if " " in line.strip():
                        yield token.start[0] + index, line
    elif path.suffix == ".sql":
        for number, line in enumerate(path.read_text().splitlines(), 1):
            if match := re.search(r"--\s.*|'(?:[^']|'')* (?:[^']|'')*'", line):
                yield number, line if "_fail" in line else match[0]


def _markdown(text: str) -> Iterator[tuple[int, str]]:
    in_code = False
    for number, line in enumerate(text.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
        elif not in_code:
            yield number, re.sub(r"`[^`]*`", "`x`", line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
