"""Writes docs/reference/errors.md from the classes: `python tools/docs_errors.py`, or `--check`."""

from __future__ import annotations

import sys

from docs_pages import cell, settle

import trunkline.client
import trunkline.jobs.refusals  # noqa: F401  and those of jobs
from trunkline.errors import BY_SQLSTATE, HINTS, TrunklineError

INTRO = """\
# Errors

<!-- Written by tools/docs_errors.py from src/trunkline/errors.py; change that file, not this one. -->

An error is known by its class or its code, never by its words. In SQL the code is the SQLSTATE; in Python the class; over
HTTP the status and the code; on the command line the exit code. Every error says what happened (`message`), and most say
what to do (`hint`).

An empty claim is not an error, and neither is a lost lease: the answers are an empty list, and `lost`.

| code | class | SQLSTATE | HTTP | exit | meaning | what to do |
|---|---|---|---|---|---|---|
"""
OUTRO = """
Classes are made from each other: `except NotFound` catches `TopicNotFound`, `except Unavailable` catches all that may
succeed later. They are in `trunkline.errors`; `LeaseLost`, `TransactionMisuse` and `InvalidBody` in `trunkline.client`,
those of jobs in `trunkline.jobs`. An argument of a Python call that has the wrong type or value is a `TypeError` or
`ValueError` before anything is sent, as everywhere in Python.

```text
{tree}
```

The command line ends with 0 when it is done, 2 for wrong usage, 124 when `--timeout` has passed, 130 when it was interrupted
and 141 when its output was closed.
"""

# What to do, where neither the server nor errors.HINTS says it: by code.
WHAT_TO_DO = {
    "error": "Read the message; if it names something inside Trunkline, report it.",
    "invalid_argument": "Correct the argument that the message names. Trying again does not help.",
    "invalid_name": "Use 1 to 200 letters, digits, `-`, `.` or `_`.",
    "invalid_duration": "Write `500ms`, `30s`, `5m`, `2h` or `7d`, within the limits that the hint names.",
    "invalid_body": "Bury the message, or read it as bytes. The sender must be corrected.",
    "payload_too_large": "Send less, put the data elsewhere and send its address, or raise `max_payload`.",
    "batch_too_large": "Send several batches; the Python client cuts by itself.",
    "invalid_settings": "Correct the flag, variable or line that the message names.",
    "not_found": "Check the name.",
    "topic_not_found": "Check the name, or create the topic.",
    "queue_not_found": "Check the name, or create the queue.",
    "group_not_found": "Check topic and name, or create the group.",
    "subscription_not_found": "See `list_subscriptions`.",
    "dead_letter_not_found": "See `list_dead_letters`: it may have been redriven or purged.",
    "schedule_not_found": "See `list_schedules`.",
    "endpoint_not_found": "See `list_endpoints`.",
    "offset_out_of_range": "Go on from the lowest offset left, which the hint names; or `seek` to `earliest`.",
    "invalid_arguments": "Give arguments that fit the function; for an old message deploy code that fits, then redrive.",
    "unknown_kind": "Check the name against `trunkline job kinds`.",
    "effect_unknown": "Look whether the effect happened; choose `on_unknown` of `run_once` beforehand.",
    "job_failed": "Read its error; `trunkline job retry` brings it back.",
    "conflict": "Read the message; the state has to change before the call can succeed.",
    "offset_ahead": "Commit only what was fetched; seek only up to the head.",
    "wrong_isolation": "Run the verb in a READ COMMITTED transaction, the default of Postgres.",
    "already_exists": "Use the `ensure` form, another name, or `alter`.",
    "in_use": "Remove what depends on it first, or force it.",
    "idempotency_conflict": "Use a new key for a new message.",
    "not_supported": "Use another kind of topic or queue; the hint says which.",
    "unauthenticated": "Send a token that allows it; make one with `trunkline token create`.",
    "lease_lost": "Nothing: somebody else has the messages. Make the lease longer than the work if it happens often.",
    "transaction_misuse": "Leave commit and rollback to the block.",
    "unavailable": "Try again later.",
    "embedded_server": "Read the end of the server's log in the detail.",
}


def classes() -> list[type[TrunklineError]]:
    """All error classes, a class before those made from it."""
    found: list[type[TrunklineError]] = []

    def walk(cls: type[TrunklineError]) -> None:
        if cls not in found and cls.__module__.startswith("trunkline."):
            found.append(cls)
            for made in cls.__subclasses__():
                walk(made)

    walk(TrunklineError)
    return found


def page() -> str:
    out = INTRO.splitlines()
    for cls in classes():
        states = ", ".join(f"`{state}`" for state, known in BY_SQLSTATE.items() if known is cls)
        meaning = (cls.__doc__ or "").strip().split("\n\n")[0]
        facts = (
            f"`{cls.code}`",
            f"`{cls.__name__}`",
            states,
            str(cls.status),
            str(cls.exit_code),
            cell(meaning),
            cell(advice(cls)),
        )
        out.append(f"| {' | '.join(facts)} |")
    return "\n".join([*out, *OUTRO.replace("{tree}", "\n".join(_tree(TrunklineError, 0))).splitlines()]) + "\n"


def advice(cls: type[TrunklineError]) -> str:
    """What the class says itself, or the table above, or what is said about the class it is made from."""
    for base in cls.__mro__:
        if hint := HINTS.get(base):
            return hint
        if base.__dict__.get("code") in WHAT_TO_DO:
            return WHAT_TO_DO[base.__dict__["code"]]
    raise KeyError(cls)


def _tree(cls: type[TrunklineError], depth: int) -> list[str]:
    lines = ["  " * depth + cls.__name__]
    for made in cls.__subclasses__():
        if made.__module__.startswith("trunkline."):
            lines += _tree(made, depth + 1)
    return lines


if __name__ == "__main__":
    sys.exit(settle("errors.md", page(), sys.argv[1:]))
