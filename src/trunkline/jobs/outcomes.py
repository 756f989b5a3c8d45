"""Outcomes that a handler may return. Any other return value is the result of a job that is done."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from trunkline.types import Duration


class Done(msgspec.Struct, frozen=True):
    """The job is done. The result is stored if the job is tracked."""

    result: Any = None


class Retry(msgspec.Struct, frozen=True):
    """Retry after `after` (default: the job's backoff). This attempt counts."""

    after: Duration | None = None
    error: str | None = None


class Snooze(msgspec.Struct, frozen=True):
    """Run the job again after `after`, without counting this attempt."""

    after: Duration


class Bury(msgspec.Struct, frozen=True):
    """Move the job to the dead letters with this reason, without further attempts."""

    reason: str


Outcome = Done | Retry | Snooze | Bury


def result_type(hint: Any) -> Any:
    """Return the result type of a function from its return annotation, or None for an outcome or no result."""
    parts = get_args(hint) or (hint,)
    return None if hint is type(None) or any(part in (Done, Retry, Snooze, Bury) for part in parts) else hint
