"""What a handler may answer: outcomes are values. Any other value is the result of a job that is done."""

from __future__ import annotations

from typing import Any, get_args

import msgspec

from trunkline.types import Duration


class Done(msgspec.Struct, frozen=True):
    """The job is done; the result is stored if somebody asked for it."""

    result: Any = None


class Retry(msgspec.Struct, frozen=True):
    """Try again after `after`, by default the backoff of the job; this attempt counts."""

    after: Duration | None = None
    error: str | None = None


class Snooze(msgspec.Struct, frozen=True):
    """Not now: again after `after`, as if it had not been delivered."""

    after: Duration


class Bury(msgspec.Struct, frozen=True):
    """To the dead letters, with the reason; no more attempts."""

    reason: str


Outcome = Done | Retry | Snooze | Bury


def result_type(hint: Any) -> Any:
    """The type of a stored result by what a function says it returns; None when that is an outcome or nothing."""
    parts = get_args(hint) or (hint,)
    return None if hint is type(None) or any(part in (Done, Retry, Snooze, Bury) for part in parts) else hint
