"""Errors as HTTP responses: RFC 9457 problem details, with psqlqueue's error numbers 1 to 10."""

from __future__ import annotations

import msgspec

from trunkline import errors
from trunkline.hints import Words, reword

MEDIA_TYPE = "application/problem+json"
HINTS = "x-trunkline-hints"
"""Requests with this header get hints in SQL terms. Our own client sends it and rewords hints for its caller."""
MESSAGES = {
    1: "internal server error",
    2: "malformed request body",
    3: "request validation failed",
    4: "queue already exists",
    5: "queue not found",
    6: "message not found",
    7: "topic already exists",
    8: "topic not found",
    9: "subscription already exists",
    10: "subscription not found",
}
_NUMBERS: dict[type[errors.TrunklineError], int] = {
    errors.QueueNotFound: 5,
    errors.TopicNotFound: 8,
    errors.SubscriptionNotFound: 10,
    errors.InvalidArgument: 3,
}


class Details(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem: `error` is the stable code; `code`, `message` and `details` are psqlqueue's."""

    type: str
    title: str
    status: int
    error: str
    detail: str
    hint: str | None = None
    code: int | None = None
    message: str | None = None
    details: str | None = None


class Problem(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        code: int | None = None,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.code = code
        self.hint = hint
        self.headers = headers or {}

    def details(self, words: Words = "route") -> Details:
        return Details(
            type=f"urn:trunkline:error:{self.error}",
            title=self.error.replace("_", " "),
            status=self.status,
            error=self.error,
            detail=self.detail,
            hint=reword(self.hint, words),
            code=self.code,
            message=None if self.code is None else MESSAGES[self.code],
            details=self.detail if self.code == 3 else None,
        )

    def body(self, words: Words = "route") -> bytes:
        return msgspec.json.encode(self.details(words))


def malformed(detail: str, error: str = "malformed_body") -> Problem:
    """The body is not valid JSON, or a value has the wrong type."""
    return Problem(400, error, detail, code=2)


def invalid(detail: str, error: str = "invalid_argument", *, hint: str | None = None) -> Problem:
    """The body is well-formed but has an invalid value."""
    return Problem(400, error, detail, code=3, hint=hint)


def no_route() -> Problem:
    return Problem(404, "no_route", "no route at this path", hint="See /docs for all routes.")


def message_not_found(detail: str) -> Problem:
    return Problem(404, "message_not_found", detail, code=6)


def body_timeout(detail: str) -> Problem:
    return Problem(408, "body_timeout", detail, headers={"connection": "close"})


def busy(detail: str, *, status: int = 503, error: str = "overloaded", after: float = 1) -> Problem:
    number = 1 if status >= 500 else None
    return Problem(status, error, detail, code=number, headers={"retry-after": str(max(1, round(after)))})


def from_error(exc: errors.TrunklineError) -> Problem:
    """Convert an error to a problem."""
    code = next((number for cls, number in _NUMBERS.items() if isinstance(exc, cls)), None)
    if exc.status >= 500:
        code = 1
    headers = {"retry-after": "1"} if exc.status == 503 else {}
    if exc.code == "error" and (exc.sqlstate or "").startswith("22"):
        # the value does not fit its database type
        return invalid(exc.message)
    # internal Postgres errors go to the log, not to the client
    known = exc.code != "error"
    detail = exc.message if known else "internal error; see the server log"
    hint = exc.hint_in("sql")
    return Problem(exc.status, exc.code if known else "internal", detail, code=code, hint=hint, headers=headers)


def from_any(exc: BaseException) -> Problem:
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, errors.TrunklineError):
        return from_error(exc)
    return Problem(500, "internal", "internal error; see the server log", code=1)
