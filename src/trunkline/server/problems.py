"""Errors as HTTP responses: RFC 9457 problem details."""

from __future__ import annotations

import msgspec

from trunkline import errors
from trunkline.hints import Interface, reword

MEDIA_TYPE = "application/problem+json"
HINTS = "x-trunkline-hints"
"""Requests with this header get hints in SQL terms. Our own client sends it and rewords hints for its caller."""


class Details(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A problem: `error` is the stable code."""

    type: str
    title: str
    status: int
    error: str
    detail: str
    hint: str | None = None


class Problem(Exception):
    """An error response."""

    def __init__(
        self,
        status: int,
        error: str,
        detail: str,
        *,
        hint: str | None = None,
        headers: dict[str, str] | None = None,
    ) -> None:
        super().__init__(detail)
        self.status = status
        self.error = error
        self.detail = detail
        self.hint = hint
        self.headers = headers or {}

    def details(self, words: Interface = "route") -> Details:
        return Details(
            type=f"urn:trunkline:error:{self.error}",
            title=self.error.replace("_", " "),
            status=self.status,
            error=self.error,
            detail=self.detail,
            hint=reword(self.hint, words),
        )

    def body(self, words: Interface = "route") -> bytes:
        return msgspec.json.encode(self.details(words))


class Malformed(Problem):
    """The body is not valid JSON, or a value has the wrong type."""


def malformed(detail: str, error: str = "malformed_body") -> Problem:
    return Malformed(400, error, detail)


def invalid(detail: str, error: str = "invalid_argument", *, hint: str | None = None) -> Problem:
    """The body is well-formed but has an invalid value."""
    return Problem(400, error, detail, hint=hint)


def no_route() -> Problem:
    return Problem(404, "no_route", "no route at this path", hint="See /docs for all routes.")


def message_not_found(detail: str) -> Problem:
    return Problem(404, "message_not_found", detail)


def body_timeout(detail: str) -> Problem:
    return Problem(408, "body_timeout", detail, headers={"connection": "close"})


def busy(detail: str, *, status: int = 503, error: str = "overloaded", after: float = 1) -> Problem:
    return Problem(status, error, detail, headers={"retry-after": str(max(1, round(after)))})


def from_error(exc: errors.TrunklineError) -> Problem:
    """Convert an error to a problem."""
    headers = {"retry-after": "1"} if exc.status == 503 else {}
    if exc.code == "error" and (exc.sqlstate or "").startswith("22"):
        # the value does not fit its database type
        return invalid(exc.message)
    # internal Postgres errors go to the log, not to the client
    known = exc.code != "error"
    detail = exc.message if known else "internal error; see the server log"
    hint = exc.hint_in("sql")
    return Problem(exc.status, exc.code if known else "internal", detail, hint=hint, headers=headers)


def from_any(exc: BaseException) -> Problem:
    if isinstance(exc, Problem):
        return exc
    if isinstance(exc, errors.TrunklineError):
        return from_error(exc)
    return Problem(500, "internal", "internal error; see the server log")
