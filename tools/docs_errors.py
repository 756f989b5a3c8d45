"""Generate docs/reference/errors.md from the error classes: `python tools/docs_errors.py`, or `--check`."""

from __future__ import annotations

import sys

from docs_pages import cell, settle

import trunkline.client
import trunkline.jobs.errors  # noqa: F401  defines the errors of jobs
from trunkline.errors import BY_SQLSTATE, HINTS, TrunklineError

INTRO = """\
# Errors

<!-- Written by tools/docs_errors.py from src/trunkline/errors.py; change that file, not this one. -->

Identify an error by its class or code, never by its message: in SQL by the SQLSTATE, in Python by the class, over
HTTP by the status and the code, on the command line by the exit code. Every error has a `message`; most also have
a `hint` that says how to fix it.

An empty claim and a lost lease are not errors: a claim returns an empty list, and settling an expired lease
returns `lost`.

| code | class | SQLSTATE | HTTP | exit | meaning | what to do |
|---|---|---|---|---|---|---|
"""
OUTRO = """
Errors form a class hierarchy: `except NotFound` catches `TopicNotFound`, and `except Unavailable` catches all
errors that a retry may resolve. The classes are in `trunkline.errors`, except `InvalidBody` in `trunkline.client`
and those of jobs in `trunkline.jobs`. An argument that the library itself
rejects, before anything is sent, raises `InvalidType` or `InvalidValue`. Both have the code `invalid_argument`;
`InvalidType` is also a `TypeError`, and `InvalidValue` a `ValueError`.

```text
{tree}
```

Commands exit with 0 on success, 2 for wrong usage, 124 if `--timeout` was exceeded, 130 if interrupted, and 141 if
stdout was closed by its reader.
"""

# Hints by code, for errors without an entry in errors.HINTS and without a hint from the server.
WHAT_TO_DO = {
    "error": "Read the message. If the cause is inside Trunkline, report it.",
    "invalid_argument": "Correct the argument that the message names. Do not retry unchanged.",
    "invalid_name": "Use 1 to 200 letters, digits, `-`, `.` or `_`.",
    "invalid_duration": "Write `500ms`, `30s`, `5m`, `2h` or `7d`, within the limits that the hint names.",
    "invalid_body": "Bury the message, or read it as bytes. Then fix the sender.",
    "payload_too_large": "Send less, store the data elsewhere and send a reference, or raise `max_payload`.",
    "batch_too_large": "Send several batches. The Python client splits batches itself.",
    "invalid_settings": "Correct the flag, variable or line that the message names.",
    "not_found": "Check the name.",
    "topic_not_found": "Check the name, or create the topic.",
    "queue_not_found": "Check the name, or create the queue.",
    "group_not_found": "Check topic and name, or create the group.",
    "subscription_not_found": "Check the name with `list_subscriptions`.",
    "run_not_found": "Check `list_runs`. Runs are removed 90 days after their end.",
    "preview_outdated": "Call `preview_run` again, and start the run with its result.",
    "dead_letter_not_found": "Check `list_dead_letters`. The message may have been redriven or purged.",
    "schedule_not_found": "Check the name with `list_schedules`.",
    "endpoint_not_found": "Check the name with `list_endpoints`.",
    "offset_out_of_range": "Continue from the earliest available offset, or `seek` to `earliest`.",
    "invalid_arguments": "Pass arguments that match the function. For an old message, deploy matching code, then redrive.",
    "unknown_kind": "Check the name with `trunkline job kinds`.",
    "effect_unknown": "Check whether the effect happened. To decide in advance, set `on_unknown` of `run_once`.",
    "job_failed": "Read the job's error. Run it again with `trunkline job retry`.",
    "conflict": "Read the message. The call cannot succeed before the state changes.",
    "offset_ahead": "Commit only fetched offsets, and seek only up to the head.",
    "wrong_isolation": "Call the function in a READ COMMITTED transaction, Postgres's default.",
    "already_exists": "Use the `ensure` form, another name, or `alter`.",
    "in_use": "Remove its dependents first, or use force.",
    "idempotency_conflict": "Use a new key for a new message.",
    "not_supported": "Use the kind of topic or queue that the hint names.",
    "unauthenticated": "Send a valid token with the required scope. Create one with `trunkline token create`.",
    "lease_lost": "Do nothing: another consumer owns the messages. If it happens often, use a longer lease.",
    "transaction_misuse": "Do not commit or roll back inside the block.",
    "unavailable": "Retry later.",
    "embedded_server": "Read the end of the server's log in the detail.",
}


def classes() -> list[type[TrunklineError]]:
    """Return one error class per code, each before its subclasses."""
    found: list[type[TrunklineError]] = []

    def walk(cls: type[TrunklineError]) -> None:
        if cls not in found and cls.__module__.startswith("trunkline."):
            if "code" in cls.__dict__:
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
    """Return what to do about a class of errors: its hint, else its entry in WHAT_TO_DO, else that of a base class."""
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
