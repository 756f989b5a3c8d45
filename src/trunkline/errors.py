"""Every error a caller can meet: one class each, with a stable code, an HTTP status and an exit code.

An error is identified by its class or its `code`, never by its words. `BY_SQLSTATE` is the only place that
relates what Postgres reports to a class. This module does not import psycopg: it reads the attributes that
psycopg's exceptions carry, so that the table can be used (and tested) without a driver.
"""

from __future__ import annotations

from typing import Any, ClassVar

from trunkline.remedies import Words, reword


class TrunklineError(Exception):
    """Base of all errors of this package.

    `message` says what happened, `hint` what to do about it, `detail` carries facts for the log. `sqlstate`
    is what Postgres reported, or None when the error did not come from the database.
    """

    code: ClassVar[str] = "error"
    status: ClassVar[int] = 500
    exit_code: ClassVar[int] = 1

    def __init__(
        self,
        message: str,
        *,
        hint: str | None = None,
        detail: str | None = None,
        sqlstate: str | None = None,
    ) -> None:
        super().__init__(message)
        self.message = message
        self._hint = hint
        self.detail = detail
        self.sqlstate = sqlstate

    @property
    def hint(self) -> str | None:
        """What to do about it, in Python's words."""
        return self.hint_in("python")

    def hint_in(self, words: Words) -> str | None:
        """The same in the words of a caller of SQL, of the command line or of HTTP."""
        return reword(self._hint, words)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (multiprocessing, Spark); the default would lose the keywords.
        return _rebuild, (type(self), self.message, self._hint, self.detail, self.sqlstate)


def _rebuild(
    cls: type[TrunklineError], message: str, hint: str | None, detail: str | None, sqlstate: str | None
) -> TrunklineError:
    return cls(message, hint=hint, detail=detail, sqlstate=sqlstate)


# Refused input: the same call will never succeed.


class InvalidArgument(TrunklineError):
    """An argument is malformed, out of its range, or text that Postgres cannot store (NUL, bad encoding)."""

    code, status, exit_code = "invalid_argument", 400, 2


class InvalidName(InvalidArgument):
    """A name is empty, too long, or has a character outside letters, digits, `-`, `.` and `_`."""

    code = "invalid_name"


class InvalidDuration(InvalidArgument):
    """A duration is malformed, negative or too long."""

    code = "invalid_duration"


class InvalidOption(InvalidArgument):
    """An option of the Spark data source is unknown, malformed or out of its range; the message names it."""

    code = "invalid_option"


class PayloadTooLarge(InvalidArgument):
    """One payload is over the limit of its topic or queue."""

    code, status = "payload_too_large", 413


class BatchTooLarge(InvalidArgument):
    """A batch has too many messages or too many bytes; nothing of it was stored."""

    code, status = "batch_too_large", 413


class SettingsError(TrunklineError):
    """A flag, a `TRUNKLINE_*` variable or a line of `.env` is wrong; the message names it."""

    code, status, exit_code = "invalid_settings", 500, 2


# Not there.


class NotFound(TrunklineError):
    """The thing named does not exist."""

    code, status, exit_code = "not_found", 404, 3


class TopicNotFound(NotFound):
    """No topic has this name."""

    code = "topic_not_found"


class QueueNotFound(NotFound):
    """No queue has this name."""

    code = "queue_not_found"


class GroupNotFound(NotFound):
    """No group has this name."""

    code = "group_not_found"


class SubscriptionNotFound(NotFound):
    """No such subscription."""

    code = "subscription_not_found"


class DeadLetterNotFound(NotFound):
    """No such dead letter: it was redriven, purged or never there."""

    code = "dead_letter_not_found"


class ScheduleNotFound(NotFound):
    """No schedule has this name."""

    code = "schedule_not_found"


class Unauthorized(TrunklineError):
    """The HTTP service wants a token, or this one does not allow it."""

    code, status, exit_code = "unauthenticated", 401, 4


class TokenNotFound(NotFound):
    """No token of the HTTP service has this name."""

    code = "token_not_found"


class JobNotFound(NotFound):
    """No such job: it was never enqueued, its transaction has not committed, retention took it, or the message is no job."""

    code = "job_not_found"


class EndpointNotFound(NotFound):
    """No endpoint has this name, or the queue is bound to none."""

    code = "endpoint_not_found"


class OffsetOutOfRange(TrunklineError):
    """The offset is below what retention has kept; those messages are gone."""

    code, status, exit_code = "offset_out_of_range", 416, 3


# In conflict with the present state.


class Conflict(TrunklineError):
    """The call does not fit the present state."""

    code, status, exit_code = "conflict", 409, 4


class OffsetAhead(Conflict):
    """A commit or seek names an offset beyond the head of the log."""

    code = "offset_ahead"


class WrongIsolation(Conflict):
    """The verb needs a READ COMMITTED transaction."""

    code = "wrong_isolation"


class AlreadyExists(Conflict):
    """The name is taken, with other settings."""

    code = "already_exists"


class InUse(Conflict):
    """Something still depends on what was to be deleted."""

    code = "in_use"


class IdempotencyConflict(Conflict):
    """The idempotency key was used before for a different message."""

    code = "idempotency_conflict"


class NotSupported(Conflict):
    """This kind of topic, queue or group cannot do that."""

    code = "not_supported"


class ArchiveConflict(Conflict):
    """These offsets are archived already, or others would be missing before them; or the archive lies in another folder."""

    code = "archive_conflict"


class StageLost(Conflict):
    """Rows that the tasks of a Spark job had staged are gone (the server was restarted); nothing was published."""

    code = "stage_lost"


class RetryableConflict(Conflict):
    """Postgres chose this transaction as the victim (serialization, deadlock); run it again."""

    code = "retryable_conflict"


class PermissionDenied(TrunklineError):
    """The database role lacks a privilege."""

    code, status, exit_code = "permission_denied", 403, 4


# The database cannot serve the call now.


class Unavailable(TrunklineError):
    """Nothing was changed; the same call can succeed later."""

    code, status, exit_code = "unavailable", 503, 5


class Busy(Unavailable):
    """A lock was not granted in time."""

    code = "busy"


class Timeout(Unavailable):
    """The statement was cancelled, by its time limit or by an operator."""

    code = "timeout"


class ReadOnly(Unavailable):
    """The server or the transaction is read-only (a standby, or default_transaction_read_only)."""

    code = "read_only"


class DiskFull(Unavailable):
    """The server has no room left on its disk."""

    code = "disk_full"


class SchemaVersion(Unavailable):
    """The installed schema is not the version this program works with."""

    code = "schema_version"


class NotInstalled(SchemaVersion):
    """The schema `trunkline`, or a part of it, is not in this database."""

    code = "not_installed"


class DatabaseUnavailable(Unavailable):
    """The server cannot be reached, is starting, or is shutting down; the call did not take effect."""

    code, exit_code = "database_unavailable", 6


class EmbeddedServerError(Unavailable):
    """The embedded Postgres could not be started or stopped; `detail` holds the end of its log."""

    code, exit_code = "embedded_server", 6


class PipelineFailed(TrunklineError):
    """A Spark job failed for a reason of its own; `detail` has the beginning of what Spark says."""

    code, status, exit_code = "pipeline_failed", 500, 1


class ArchiveDamaged(TrunklineError):
    """A file of the archive is missing, or not what was archived; the message names it."""

    code, status, exit_code = "archive_damaged", 500, 1


class SparkUnavailable(Unavailable):
    """Spark cannot be started here: no Java, no pyspark, or a version that does not fit."""

    code = "spark_unavailable"


class OutcomeUnknown(TrunklineError):
    """The connection was lost during a write: it happened or it did not, and only the database knows.

    Retry with the same message ids or idempotency keys; never assume either.
    """

    code, status, exit_code = "outcome_unknown", 503, 7


# The one table. TLnnn are raised by our own SQL functions; tests/unit checks them against the SQL.
BY_SQLSTATE: dict[str, type[TrunklineError]] = {
    "TL001": InvalidArgument,
    "TL002": InvalidName,
    "TL003": PayloadTooLarge,
    "TL004": BatchTooLarge,
    "TL005": InvalidDuration,
    "TL006": OffsetOutOfRange,
    "TL007": OffsetAhead,
    "TL008": WrongIsolation,
    "TL009": SchemaVersion,
    "TL010": TopicNotFound,
    "TL011": QueueNotFound,
    "TL012": GroupNotFound,
    "TL013": SubscriptionNotFound,
    "TL014": DeadLetterNotFound,
    "TL015": ScheduleNotFound,
    "TL016": TokenNotFound,
    "TL017": EndpointNotFound,
    "TL018": JobNotFound,
    "TL020": AlreadyExists,
    "TL021": InUse,
    "TL022": IdempotencyConflict,
    "TL023": NotSupported,
    "TL024": StageLost,
    "TL030": Busy,
    "TL060": ArchiveConflict,
    "22003": InvalidArgument,  # a number that no column of ours can hold
    "22021": InvalidArgument,  # bytes that are not text in the server's encoding, NUL among them
    "22P02": InvalidArgument,  # text that is not of its type, such as headers that are no JSON
    "22P05": InvalidArgument,  # \u0000 in jsonb
    "25006": ReadOnly,
    "3F000": NotInstalled,
    "40001": RetryableConflict,
    "40P01": RetryableConflict,
    "42501": PermissionDenied,
    "42883": NotInstalled,
    "42P01": NotInstalled,
    "53100": DiskFull,
    "53300": DatabaseUnavailable,  # too many connections
    "55P03": Busy,
    "57014": Timeout,
    "57P01": DatabaseUnavailable,
    "57P02": DatabaseUnavailable,
    "57P03": DatabaseUnavailable,
}

# What to do, where the server itself gives no hint.
HINTS: dict[type[TrunklineError], str] = {
    NotInstalled: "run trunkline migrate",
    SchemaVersion: "run trunkline migrate with the version of this program",
    DatabaseUnavailable: "check that the server runs and that the database URL is right",
    ReadOnly: "connect to the primary server",
    DiskFull: "free space on the server's disk",
    Busy: "try again; trunkline doctor names who holds the lock",
    Timeout: "try again, or raise statement_timeout",
    RetryableConflict: "run the transaction again",
    PermissionDenied: "grant the role the privilege, or connect as the owner of schema trunkline",
    OutcomeUnknown: "retry with the same idempotency key; duplicates are detected",
}


def class_for(sqlstate: str | None) -> type[TrunklineError]:
    """The class for a SQLSTATE; None means that there was no server to report one."""
    if sqlstate is None or sqlstate.startswith("08"):
        return DatabaseUnavailable
    return BY_SQLSTATE.get(sqlstate, TrunklineError)


def from_psycopg(exc: BaseException, *, writing: bool = False) -> TrunklineError:
    """Translate a psycopg exception; the answer is to be raised `from exc`.

    `writing`: the call may have changed rows, so a connection that was lost under it is `OutcomeUnknown`.
    """
    if isinstance(exc, TrunklineError):
        return exc
    sqlstate: str | None = getattr(exc, "sqlstate", None)
    cls = _class_of(exc, sqlstate)
    if writing and cls is DatabaseUnavailable:
        cls = OutcomeUnknown
    diag = getattr(exc, "diag", None)
    message = getattr(diag, "message_primary", None) or _first_line(exc)
    hint = getattr(diag, "message_hint", None) or HINTS.get(cls)
    detail = getattr(diag, "message_detail", None)
    return cls(message, hint=hint, detail=detail, sqlstate=sqlstate)


def _class_of(exc: BaseException, sqlstate: str | None) -> type[TrunklineError]:
    if sqlstate is not None:
        return class_for(sqlstate)
    names = {base.__name__ for base in type(exc).__mro__}
    if "OperationalError" in names or "InterfaceError" in names:
        return DatabaseUnavailable
    # psycopg refuses NUL bytes and unencodable text itself, before the server sees them.
    if "DataError" in names or isinstance(exc, UnicodeError):
        return InvalidArgument
    return TrunklineError


def _first_line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0] if lines else type(exc).__name__
