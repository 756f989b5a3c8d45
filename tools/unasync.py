"""Generate the sync versions of the async modules: `python tools/unasync.py`; `--check` only verifies them.

The async files are the source. The generator rewrites tokens, which preserves comments, and formats the result with
ruff. Code that differs between tasks and threads is in `concurrency/aio.py` and `concurrency/threads.py`, which define
the same names.
"""

from __future__ import annotations

import difflib
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "src" / "trunkline"
TWINS = {
    "db": (
        "pool",
        "query",
        "wakeup",
        "calls.__init__",
        "calls.statements",
        "calls.topics",
        "calls.messages",
        "calls.groups",
        "calls.queues",
        "calls.subscriptions",
        "calls.dead_letters",
        "calls.runs",
        "calls.schedules",
        "calls.stats",
        "calls.inspection",
        "calls.wakeups",
        "calls.procedures",
        "calls.transactions",
        "calls.push",
        "calls.jobs",
    ),
    "runtime": ("renewals", "publisher", "settler", "session", "transactions"),
    "client": (
        "deliveries",
        "batches",
        "claims",
        "group_reader",
        "resource",
        "topics",
        "queues",
        "groups",
        "subscriptions",
        "dead_letters",
        "runs",
        "schedules",
        "endpoints",
        "inspection",
        "connection_client",
        "client",
    ),
}
NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "AsyncConnection": "Connection",
    "AsyncConnectionPool": "ConnectionPool",
    "AsyncCursor": "Cursor",
    "AsyncIterator": "Iterator",
    "Client": "SyncClient",
    "StopAsyncIteration": "StopIteration",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
    "__aiter__": "__iter__",
    "__anext__": "__next__",
    "async_driver": "sync_driver",
    "asynccontextmanager": "contextmanager",
}
# Replacements in comments and strings.
WORDS = (
    (r"\basync (with|for|def)\b", r"\1"),
    (r"\bawait ", ""),
    (r"\bClient\(", "SyncClient("),
    (r"\bmany tasks of one event loop\b", "many threads"),
)
_HEADER = "# Written by tools/unasync.py from {source}; change that file, not this one.\n"


def main(arguments: list[str]) -> int:
    stale = []
    for target, text in generate().items():
        old = target.read_text() if target.exists() else ""
        if old == text:
            continue
        if "--check" in arguments:
            stale.append(str(target.relative_to(ROOT)))
            sys.stdout.writelines(difflib.unified_diff(old.splitlines(True), text.splitlines(True), "there", "should be"))
        else:
            target.parent.mkdir(parents=True, exist_ok=True)
            target.write_text(text)
    if stale:
        print(f"out of date, run python tools/unasync.py: {', '.join(stale)}", file=sys.stderr)
    return 1 if stale else 0


def generate() -> dict[Path, str]:
    """Return the expected text of each generated file."""
    files = {}
    for layer, modules in TWINS.items():
        folder = PACKAGE / layer / "sync"
        files[folder / "__init__.py"] = f'"""The sync twins of `trunkline.{layer}`, written by tools/unasync.py."""\n'
        for module in modules:
            path = f"{module.replace('.', '/')}.py"
            source, target = PACKAGE / layer / path, folder / path
            header = _HEADER.format(source=source.relative_to(ROOT))
            files[target] = formatted(header + rewritten(source.read_text()), target)
    return files


def rewritten(source: str) -> str:
    """Return the sync version of an async module."""
    lines = [0]
    for line in source.splitlines(True):
        lines.append(lines[-1] + len(line))
    edits: list[tuple[int, int, str]] = []
    tokens = list(tokenize.generate_tokens(io.StringIO(source).readline))
    closing: list[int] = []
    depth = 0
    for number, token in enumerate(tokens):
        start = lines[token.start[0] - 1] + token.start[1]
        end = lines[token.end[0] - 1] + token.end[1]
        text = token.string
        if text == "[":
            depth += 1
        elif text == "]":
            if closing and closing[-1] == depth:
                closing.pop()
                edits.append((start, end, ""))
            depth -= 1
        if token.type == tokenize.NAME and text in ("async", "await"):
            following = tokens[number + 1]
            edits.append((start, lines[following.start[0] - 1] + following.start[1], ""))
        elif token.type == tokenize.NAME and text == "Awaitable" and tokens[number + 1].string == "[":
            # Awaitable[T] becomes T: drop the brackets too.
            bracket = tokens[number + 1]
            edits.append((start, lines[bracket.end[0] - 1] + bracket.end[1], ""))
            closing.append(depth + 1)
        elif token.type == tokenize.NAME and text in NAMES:
            edits.append((start, end, NAMES[text]))
        elif token.type in (tokenize.STRING, tokenize.COMMENT) or tokenize.tok_name[token.type] == "FSTRING_MIDDLE":
            plain = text
            for pattern, instead in WORDS:
                plain = re.sub(pattern, instead, plain)
            if plain != text:
                edits.append((start, end, plain))
    for start, end, text in sorted(edits, reverse=True):
        source = source[:start] + text + source[end:]
    return with_twin_modules(source)


def with_twin_modules(source: str) -> str:
    source = re.sub(r"\btrunkline\.concurrency\.aio\b", "trunkline.concurrency.threads", source)
    for layer, modules in TWINS.items():
        for module in modules:
            name = module.removesuffix(".__init__")
            package, _, last = f"trunkline.{layer}.{name}".rpartition(".")
            twin = package.replace(f".{layer}", f".{layer}.sync", 1)
            # A package has modules without a twin: replace only its own name.
            source = re.sub(rf"\bfrom {re.escape(package)} import {last}\b", f"from {twin} import {last}", source)
            source = re.sub(rf"\b{re.escape(package)}\.{last}\b(?!\.)", f"{twin}.{last}", source)
    return source


def formatted(text: str, target: Path) -> str:
    """Format with ruff: sort imports and remove unused ones."""
    ruff = Path(sys.executable).with_name("ruff")
    name = ["--stdin-filename", str(target)]
    fix = [str(ruff), "check", "--fix", "--quiet", "--exit-zero", "--select", "F401,F811,I", *name, "-"]
    text = _piped(fix, text)
    return _piped([str(ruff), "format", "--quiet", *name, "-"], text)


def _piped(command: list[str], text: str) -> str:
    return subprocess.run(command, input=text, capture_output=True, text=True, check=True, cwd=ROOT).stdout


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
