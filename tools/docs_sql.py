"""Generate docs/reference/sql.md from the SQL files: `python tools/docs_sql.py`, or `--check`."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from docs_pages import settle

from trunkline.sql import catalog

INTRO = """\
# SQL reference

<!-- Written by tools/docs_sql.py from src/trunkline/sql; change those files, not this one. -->

All functions are in schema `trunkline`. Pass all but the first arguments by name: `p_key => 'ann'`. *May call*
lists the [roles](../operations/roles.md) besides `trunkline_owner`, which can call every function. Names that begin
with `_` are internal. Errors have a SQLSTATE of class `TL`, and most a hint: see [errors](errors.md).

Row types that functions return:

| type | columns |
|---|---|
{rows}

Functions that return `trunkline.topics`, `trunkline.queues` and so on return rows of that table.
"""

# Groups of functions, by source file.
FAMILIES = {
    "topics.sql": "Topics",
    "publish.sql": "Publishing",
    "log.sql": "Reading a log",
    "groups.sql": "Groups",
    "queues.sql": "Queues",
    "claim.sql": "Claiming",
    "claim_many.sql": "Claiming from many queues",
    "settle.sql": "Settling",
    "poll.sql": "Waiting",
    "dead.sql": "Dead letters",
    "dead_groups.sql": "Groups of dead letters",
    "runs.sql": "Runs",
    "schedules.sql": "Schedules",
    "explain.sql": "Explaining",
    "history.sql": "Delivery history and archive",
    "stats.sql": "Statistics",
    "rollups.sql": "Rates and latencies",
    "series.sql": "Rates of many subjects",
    "topic_map.sql": "Maps and deadlines",
    "search.sql": "Searching a log",
    "attention.sql": "Attention",
    "archive.sql": "The archive",
    "report.sql": "Reports",
    "outbox.sql": "Outbox",
    "pg_messaging.sql": "pg-messaging",
    "push.sql": "Push",
    "upkeep.sql": "Upkeep",
    "roles.sql": "Rights and numbers",
    "clock.sql": "Time and ids",
}

# Defined inside a do block, with a variant per Postgres version.
NEW_ID = "Returns a version 7 uuid, so that ids sort by time."

_FUNCTION = re.compile(r"^create or replace (function|procedure) trunkline\.([a-z]\w*)\(", re.MULTILINE)
_END = re.compile(r"\n(language|returns trigger)|\s+language |\nas \$")
_ROLE = re.compile(r"\('(trunkline_\w+)', '\{([^}]*)\}'")
_TYPE = re.compile(r"^create type trunkline\.(\w+) as \((.*?)\);", re.MULTILINE | re.DOTALL)
_VIEW = re.compile(r"^create or replace view trunkline\.(\w+) as select \* from trunkline\.(\w+)\((.*?)\);", re.MULTILINE)
_ROWS = ("published", "message", "fetched", "delivery", "settlement")


class Function(NamedTuple):
    """A public function: its file, its signature, and the comment above it."""

    file: str
    name: str
    signature: str
    comment: str


def functions() -> list[Function]:
    """Return all public functions, in file order."""
    found: dict[str, Function] = {}
    for file in catalog.functions():
        for match in _FUNCTION.finditer(file.text):
            end = _END.search(file.text, match.end())
            assert end is not None
            signature = " ".join(file.text[match.start() : end.start()].split())
            signature = re.sub(
                r"^create or replace (?:function|procedure) ", "call " if match[1] == "procedure" else "", signature
            )
            name = match[2]
            found[name] = Function(file.name, name, signature, _comment_above(file.text, match.start()))
    found["new_id"] = Function("clock.sql", "new_id", "trunkline.new_id() returns uuid", NEW_ID)
    return list(found.values())


def _comment_above(text: str, start: int) -> str:
    lines: list[str] = []
    for line in reversed(text[:start].split("\n")[:-1]):
        if not line.startswith("--"):
            break
        lines.append(line.removeprefix("--").removeprefix(" "))
    return "\n".join(reversed(lines))


def callers() -> dict[str, list[str]]:
    """Return the roles that can call a function. Omits the owner, which can call all."""
    text = next(file.text for file in catalog.functions() if file.name == "roles.sql")
    may: dict[str, list[str]] = {}
    for role, verbs in _ROLE.findall(text):
        for verb in re.split(r"[,\s]+", verbs.strip()):
            may.setdefault(verb, []).append(role.removeprefix("trunkline_"))
    return may


def types() -> dict[str, str]:
    """Return the row types that functions return, with their columns."""
    found = {}
    for file in catalog.migrations():
        found.update({name: " ".join(columns.split()) for name, columns in _TYPE.findall(file.text)})
    return {name: found[name] for name in _ROWS}


def page() -> str:
    may = callers()
    rows = "\n".join(f"| `{name}` | {columns} |" for name, columns in types().items())
    out = INTRO.replace("{rows}", rows).splitlines()
    everything = functions()
    others = {each.name: each.name.removesuffix(".sql").capitalize() for each in catalog.functions()}
    for file, family in {**FAMILIES, **{file: name for file, name in others.items() if file not in FAMILIES}}.items():
        members = [function for function in everything if function.file == file]
        if not members:
            continue
        out += ["", f"## {family}"]
        for function in members:
            roles = [role for role in may.get(function.name, []) if role != "owner"]
            out += ["", f"### {function.name}", "", "```text", _wrapped(function.signature), "```", ""]
            out += [_paragraphs(function.comment), "", f"May call: {', '.join(roles) if roles else 'owner only'}."]
    out += ["", "## Views", "", "For `trunkline_reader`.", "", "| view | is |", "|---|---|"]
    for sql in catalog.functions():
        for name, source, arguments in _VIEW.findall(sql.text):
            out.append(f"| `trunkline.{name}` | `{source}({arguments})` |")
    return "\n".join(out) + "\n"


def _wrapped(signature: str) -> str:
    """Put each parameter on its own line if the signature is long."""
    if len(signature) <= 110:
        return signature
    head, _, rest = signature.partition("(")
    inside, after = _closing(rest)
    return f"{head}(\n    " + ",\n    ".join(_parameters(inside)) + f"\n){after}"


def _closing(text: str) -> tuple[str, str]:
    depth = 1
    for place, char in enumerate(text):
        depth += (char == "(") - (char == ")")
        if depth == 0:
            return text[:place], text[place + 1 :]
    raise ValueError(text)


def _parameters(text: str) -> list[str]:
    parts, depth, start = [], 0, 0
    for place, char in enumerate(text):
        depth += (char in "([") - (char in ")]")
        if char == "," and depth == 0:
            parts.append(text[start:place].strip())
            start = place + 1
    return [*parts, text[start:].strip()]


def _paragraphs(comment: str) -> str:
    """Convert a comment to Markdown; indented lines become code blocks."""
    out: list[str] = []
    for line in comment.split("\n"):
        code = line.startswith("  ")
        if code and (not out or not out[-1].startswith("    ")):
            out.append("")
        out.append("    " + line.strip() if code else line)
    return "\n".join(out).replace("\n\n\n", "\n\n").strip("\n")


if __name__ == "__main__":
    sys.exit(settle("sql.md", page(), sys.argv[1:]))
