"""Writes docs/reference/sql.md from the SQL files: `python tools/docs_sql.py`, or `--check`."""

from __future__ import annotations

import re
import sys
from typing import NamedTuple

from docs_pages import settle

from trunkline.sql import catalog

INTRO = """\
# SQL reference

<!-- Written by tools/docs_sql.py from src/trunkline/sql; change those files, not this one. -->

Every verb is a function in schema `trunkline`. Arguments behind the first few are best given by name: `p_key => 'ann'`.
*May call* names the [roles](../howto/roles.md) besides `trunkline_owner`, which may call everything. Names that begin with
`_` are internal. Errors have a SQLSTATE of class `TL` and a hint: see [errors](errors.md).

The rows that functions answer with:

| type | columns |
|---|---|
{rows}

Functions that return `trunkline.topics`, `trunkline.queues` and so on answer with a row of that table.
"""

# The families of functions: by the file that has them.
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
    "schedules.sql": "Schedules",
    "explain.sql": "Explaining",
    "history.sql": "Delivery history and archive",
    "stats.sql": "Numbers",
    "rollups.sql": "Rates and latencies",
    "archive.sql": "The archive",
    "report.sql": "Reports",
    "outbox.sql": "Outbox",
    "recipes.sql": "Recipes",
    "push.sql": "Push",
    "upkeep.sql": "Upkeep",
    "roles.sql": "Rights and numbers",
    "clock.sql": "Time and ids",
}

# It is written inside a block, for two versions of Postgres.
NEW_ID = "Returns a version 7 uuid, so that ids sort by time."

_FUNCTION = re.compile(r"^create or replace (function|procedure) trunkline\.([a-z]\w*)\(", re.MULTILINE)
_END = re.compile(r"\n(language|returns trigger)|\s+language |\nas \$")
_ROLE = re.compile(r"\('(trunkline_\w+)', '\{([^}]*)\}'")
_TYPE = re.compile(r"^create type trunkline\.(\w+) as \((.*?)\);", re.MULTILINE | re.DOTALL)
_VIEW = re.compile(r"^create or replace view trunkline\.(\w+) as select \* from trunkline\.(\w+)\((.*?)\);", re.MULTILINE)
_ROWS = ("published", "message", "fetched", "delivery", "settlement")


class Function(NamedTuple):
    """A verb: where it is, how it is called, what its file says about it."""

    file: str
    name: str
    signature: str
    comment: str


def functions() -> list[Function]:
    """All public functions, in the order of their files."""
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
    """The roles that may call a function, besides the owner, who may call all."""
    text = next(file.text for file in catalog.functions() if file.name == "roles.sql")
    may: dict[str, list[str]] = {}
    for role, verbs in _ROLE.findall(text):
        for verb in re.split(r"[,\s]+", verbs.strip()):
            may.setdefault(verb, []).append(role.removeprefix("trunkline_"))
    return may


def types() -> dict[str, str]:
    """The row types that functions answer with."""
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
    """One parameter per line when the line would be long."""
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
    """Indented lines of a comment are code."""
    out: list[str] = []
    for line in comment.split("\n"):
        code = line.startswith("  ")
        if code and (not out or not out[-1].startswith("    ")):
            out.append("")
        out.append("    " + line.strip() if code else line)
    return "\n".join(out).replace("\n\n\n", "\n\n").strip("\n")


if __name__ == "__main__":
    sys.exit(settle("sql.md", page(), sys.argv[1:]))
