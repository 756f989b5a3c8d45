"""Errors that only jobs have."""

from __future__ import annotations

from trunkline.errors import Conflict, InvalidArgument, NotFound, TrunklineError


class InvalidArguments(InvalidArgument, TypeError):
    """The arguments of a job do not fit its function."""

    code = "invalid_arguments"


class UnknownKind(NotFound):
    """No job of this app has this name."""

    code = "unknown_kind"


class EffectUnknown(Conflict):
    """An effect was started by an earlier attempt, and nobody knows whether it happened."""

    code = "effect_unknown"


class JobFailed(TrunklineError):
    """The job whose result was awaited has failed for good; the message is its last error."""

    code = "job_failed"


class JobInterrupted(BaseException):
    """Raised inside a handler that runs in a thread, to end it: a time-out, a lost lease, a cancel or a stop.

    Not an `Exception`, so that a handler's own `except Exception` lets it pass.
    """


class HandlerStalled(BaseException):
    """Raised inside an async handler that kept the event loop from running for too long."""
