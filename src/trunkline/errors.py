"""All errors of the package: one class each, with a stable code, an HTTP status and an exit code.

Identify an error by its class or its `code`, not by its message. `BY_SQLSTATE` is the only mapping from SQLSTATEs
to classes. This module does not import psycopg: it reads the attributes of psycopg's exceptions, so that it can be
used and tested without a driver.
"""

from __future__ import annotations

from typing import Any, ClassVar

from trunkline.hints import Interface, reword


class TrunklineError(Exception):
    """Base of all errors of this package.

    `message` is what is wrong, `hint` how to fix it, `detail` more facts for the log. `sqlstate` is the SQLSTATE that
    Postgres reported, or None if the error did not come from the database.
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
        """How to fix the error, in terms of the Python API."""
        return self.hint_in("python")

    def hint_in(self, interface: Interface) -> str | None:
        """Return the hint in terms of SQL, the command line, HTTP or Python."""
        return reword(self._hint, interface)

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __reduce__(self) -> tuple[Any, ...]:
        # Exceptions cross process boundaries (multiprocessing, Spark); the default would lose the keywords.
        return _rebuild, (type(self), self.message, self._hint, self.detail, self.sqlstate)


def _rebuild(
    cls: type[TrunklineError], message: str, hint: str | None, detail: str | None, sqlstate: str | None
) -> TrunklineError:
    return cls(message, hint=hint, detail=detail, sqlstate=sqlstate)


# Invalid input: the same call will never succeed.


class InvalidArgument(TrunklineError):
    """An argument is malformed or out of range, or contains text that Postgres cannot store (NUL, bad encoding)."""

    code, status, exit_code = "invalid_argument", 400, 2


class InvalidType(InvalidArgument, TypeError):
    """An argument has the wrong type. Raised before anything is sent."""


class InvalidValue(InvalidArgument, ValueError):
    """An argument has an unusable value. Raised before anything is sent."""


class InvalidName(InvalidArgument):
    """A name is empty, too long, or has a character outside letters, digits, `-`, `.` and `_`."""

    code = "invalid_name"


class InvalidDuration(InvalidArgument):
    """A duration is malformed, negative or too long."""

    code = "invalid_duration"


class InvalidOption(InvalidArgument):
    """An option of the Spark data source is unknown, malformed or out of range; the message names it."""

    code = "invalid_option"


class PayloadTooLarge(InvalidArgument):
    """A payload is larger than the limit of its topic or queue."""

    code, status = "payload_too_large", 413


class BatchTooLarge(InvalidArgument):
    """A batch has too many messages or too many bytes; none of it was stored."""

    code, status = "batch_too_large", 413


class SettingsError(TrunklineError):
    """A flag, a `TRUNKLINE_*` variable or a line of `.env` is wrong; the message names it."""

    code, status, exit_code = "invalid_settings", 500, 2


# Missing resources.


class NotFound(TrunklineError):
    """The named resource does not exist."""

    code, status, exit_code = "not_found", 404, 3


class TopicNotFound(NotFound):
    """No topic with this name exists."""

    code = "topic_not_found"


class QueueNotFound(NotFound):
    """No queue with this name exists."""

    code = "queue_not_found"


class GroupNotFound(NotFound):
    """No group with this name exists."""

    code = "group_not_found"


class SubscriptionNotFound(NotFound):
    """No such subscription exists."""

    code = "subscription_not_found"


class DeadLetterNotFound(NotFound):
    """No such dead letter exists: it was redriven or purged, or the message never was one."""

    code = "dead_letter_not_found"


class ScheduleNotFound(NotFound):
    """No schedule with this name exists."""

    code = "schedule_not_found"


class Unauthorized(TrunklineError):
    """The HTTP service requires a token, or the given token is invalid or lacks the scope."""

    code, status, exit_code = "unauthenticated", 401, 4


class TokenNotFound(NotFound):
    """No token of the HTTP service with this name exists."""

    code = "token_not_found"


class JobNotFound(NotFound):
    """The job was never enqueued, is not committed yet or was removed by retention, or the message is not a job."""

    code = "job_not_found"


class RunNotFound(NotFound):
    """No run with this number exists."""

    code = "run_not_found"


class EndpointNotFound(NotFound):
    """No endpoint with this name exists, or the queue is not bound to an endpoint."""

    code = "endpoint_not_found"


class OffsetOutOfRange(TrunklineError):
    """The offset is below the earliest available one: retention has removed its message."""

    code, status, exit_code = "offset_out_of_range", 416, 3


# Conflicts with the current state.


class Conflict(TrunklineError):
    """The call conflicts with the current state."""

    code, status, exit_code = "conflict", 409, 4


class OffsetAhead(Conflict):
    """An offset is above the head of the log, or above the last fetched one."""

    code = "offset_ahead"


class WrongIsolation(Conflict):
    """The function needs a READ COMMITTED transaction."""

    code = "wrong_isolation"


class AlreadyExists(Conflict):
    """The name already exists; for `ensure` functions, with other settings."""

    code = "already_exists"


class InUse(Conflict):
    """Other resources still depend on the one to be deleted."""

    code = "in_use"


class IdempotencyConflict(Conflict):
    """The idempotency key was used before for a different message."""

    code = "idempotency_conflict"


class PreviewOutdated(Conflict):
    """The number of messages that match has changed since the preview."""

    code = "preview_outdated"


class NotSupported(Conflict):
    """This kind of topic, queue or group does not support the call."""

    code = "not_supported"


class ArchiveConflict(Conflict):
    """The offsets are already archived or would leave a gap, or the archive is in another folder."""

    code = "archive_conflict"


class StagedRowsLost(Conflict):
    """Rows that the tasks of a Spark job staged were lost or abandoned; nothing was published."""

    code = "staged_rows_lost"


class LeaseLost(Conflict):
    """The lease ended or was replaced before the transaction committed, so the transaction was rolled back."""

    code = "lease_lost"


class TransactionMisuse(Conflict):
    """A transaction with an ack or commit was ended inside its block or used outside it; nothing was settled."""

    code = "transaction_misuse"


class RetryableConflict(Conflict):
    """The transaction conflicted with another one (serialization failure, deadlock); run it again."""

    code = "retryable_conflict"


class PermissionDenied(TrunklineError):
    """The database role lacks a privilege."""

    code, status, exit_code = "permission_denied", 403, 4


# The database cannot serve the call at the moment.


class Unavailable(TrunklineError):
    """Nothing was changed; a later retry can succeed."""

    code, status, exit_code = "unavailable", 503, 5


class Busy(Unavailable):
    """A lock was not granted in time."""

    code = "busy"


class Timeout(Unavailable):
    """The statement was cancelled by its timeout or by an operator."""

    code = "timeout"


class ReadOnly(Unavailable):
    """The server or the transaction is read-only (a standby, or default_transaction_read_only)."""

    code = "read_only"


class DiskFull(Unavailable):
    """The disk of the server is full."""

    code = "disk_full"


class SchemaVersion(Unavailable):
    """The version of the installed schema does not match the program."""

    code = "schema_version"


class NotInstalled(SchemaVersion):
    """Schema `trunkline`, or a part of it, is not installed in this database."""

    code = "not_installed"


class DatabaseUnavailable(Unavailable):
    """The server cannot be reached, is starting, or is shutting down; the call did not take effect."""

    code, exit_code = "database_unavailable", 6


class EmbeddedServerError(Unavailable):
    """The embedded Postgres could not be started or stopped; `detail` has the end of its log."""

    code, exit_code = "embedded_server", 6


class PipelineFailed(TrunklineError):
    """A Spark job failed with an error that did not come from Trunkline; `detail` has the start of Spark's report."""

    code, status, exit_code = "pipeline_failed", 500, 1


class ArchiveDamaged(TrunklineError):
    """A file of the archive is missing or differs from what was archived; the message names it."""

    code, status, exit_code = "archive_damaged", 500, 1


class SparkUnavailable(Unavailable):
    """Spark cannot be started: Java or pyspark is missing, or a version is not supported."""

    code = "spark_unavailable"


class OutcomeUnknown(TrunklineError):
    """The connection was lost during a write, which may or may not have happened.

    Retry a publish with the same idempotency key.
    """

    code, status, exit_code = "outcome_unknown", 503, 7


# TLnnn are raised by our own SQL functions; tests/unit checks them against the SQL.
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
    "TL019": RunNotFound,
    "TL020": AlreadyExists,
    "TL021": InUse,
    "TL022": IdempotencyConflict,
    "TL023": NotSupported,
    "TL024": StagedRowsLost,
    "TL025": PreviewOutdated,
    "TL030": Busy,
    "TL060": ArchiveConflict,
    "22003": InvalidArgument,  # a number out of range of its column
    "22021": InvalidArgument,  # bytes that are not valid in the server encoding, such as NUL
    "22P02": InvalidArgument,  # text that does not parse as its type, such as headers that are not JSON
    "22P05": InvalidArgument,  # \u0000 in jsonb
    "54001": InvalidArgument,  # JSON that is nested too deeply for the server's stack
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

# Hints for errors without a hint from the server.
HINTS: dict[type[TrunklineError], str] = {
    NotInstalled: 'Run "trunkline migrate".',
    SchemaVersion: 'Run "trunkline migrate" of the same release as this program.',
    DatabaseUnavailable: "Check that the server is running and that the database URL is correct.",
    ReadOnly: "Connect to the primary server.",
    DiskFull: "Free disk space on the server.",
    Busy: 'Retry. Run "trunkline doctor" to find the blocking session.',
    Timeout: "Retry, or raise statement_timeout.",
    RetryableConflict: "Run the transaction again.",
    PermissionDenied: "Grant the privilege to the role, or connect as the owner of schema trunkline.",
    OutcomeUnknown: "Retry with the same idempotency key; duplicates are detected.",
}


def class_for(sqlstate: str | None) -> type[TrunklineError]:
    """Return the class for a SQLSTATE. None means that the server could not report one."""
    if sqlstate is None or sqlstate.startswith("08"):
        return DatabaseUnavailable
    return BY_SQLSTATE.get(sqlstate, TrunklineError)


def from_psycopg(exc: BaseException, *, writing: bool = False) -> TrunklineError:
    """Convert a psycopg exception. Raise the result `from exc`.

    `writing`: the call may have changed rows, so a lost connection becomes `OutcomeUnknown`.
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
    # psycopg itself rejects NUL bytes and unencodable text, before the server sees them.
    if "DataError" in names or isinstance(exc, UnicodeError):
        return InvalidArgument
    return TrunklineError


def _first_line(exc: BaseException) -> str:
    lines = str(exc).strip().splitlines()
    return lines[0] if lines else type(exc).__name__
