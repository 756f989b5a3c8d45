"""Errors that only jobs raise."""

from __future__ import annotations

from trunkline.errors import Conflict, InvalidArgument, NotFound, TrunklineError


class InvalidArguments(InvalidArgument, TypeError):
    """The arguments of a job do not match its function."""

    code = "invalid_arguments"


class UnknownKind(NotFound):
    """The app has no job of this name."""

    code = "unknown_kind"


class EffectUnknown(Conflict):
    """An earlier attempt started an effect, and it is unknown whether the effect happened."""

    code = "effect_unknown"


class JobFailed(TrunklineError):
    """The awaited job has become a dead letter. The message is its last error."""

    code = "job_failed"


class JobInterrupted(BaseException):
    """Raised inside a handler that runs in a thread, to end it after a timeout, lost lease, cancellation or stop.

    Not an `Exception`, so that a handler's own `except Exception` does not catch it.
    """


class HandlerStalled(BaseException):
    """Raised inside an async handler that blocked the event loop for too long."""
