"""Convert Spark errors to `TrunklineError`. A task's error reaches the driver as text only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from trunkline import errors
from trunkline.db.calls import spark as calls
from trunkline.errors import TopicNotFound, TrunklineError
from trunkline.spark.database import plain

_RAISED = re.compile(r"^(?:[\w.]*\.)?errors\.(\w+): (.*)$", re.MULTILINE)
_CAUSED = re.compile(r"^\s*Caused by: (?:[\w.$]+: )*(.+)$", re.MULTILINE)
_UNKNOWN_TOPIC = re.compile('topic "(.+)" does not exist')
_MAX_MESSAGE = 500


def cause(text: str) -> TrunklineError:
    """Return the Trunkline error that a Spark error wraps, else a `PipelineFailed` with Spark's message, shortened."""
    for name, message in reversed(_RAISED.findall(text)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TrunklineError):
            summary, _, hint = message.rpartition(" (")
            return kind(summary or message, hint=hint.removesuffix(")") if summary else None)
    if trace := _python_trace(text):
        return errors.PipelineFailed(trace[-1][:_MAX_MESSAGE], detail="\n".join(trace)[-_MAX_MESSAGE * 8 :])
    summary = (_java_summary(text) or "Spark reported an error without a message")[:_MAX_MESSAGE]
    if (reasons := _CAUSED.findall(text)) and reasons[-1] not in summary:
        summary = f"{summary[: _MAX_MESSAGE // 2]}: {reasons[-1]}"[:_MAX_MESSAGE]
    # Errors with a condition name, such as [UNRESOLVED_COLUMN], describe the user's query; the rest is Spark's plan.
    return errors.PipelineFailed(summary, detail=None if summary.startswith("[") else text[: _MAX_MESSAGE * 8])


def _python_trace(text: str) -> list[str]:
    """Return the traceback lines of the last exception raised in a Python process, such as in a user's function."""
    _, separator, trace = text.rpartition("Traceback (most recent call last):\n")
    lines = trace.splitlines() if separator else []
    ends = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), -1)
    return lines[: ends + 1]


def _java_summary(text: str) -> str | None:
    """Return the first line that says more than which call failed."""
    lines = (line.strip().removeprefix(": ") for line in text.splitlines())
    return next((line for line in lines if line and not line.startswith("An error occurred while calling ")), None)


@contextmanager
def near_topics(url: str) -> Iterator[None]:
    """Add the most similar existing topic name to `TopicNotFound` errors."""
    try:
        yield
    except TopicNotFound as exc:
        match = _UNKNOWN_TOPIC.fullmatch(exc.message)
        if match is None:
            raise
        with plain(url) as conn:
            near = get_close_matches(match[1], calls.topic_names(conn), n=1)
        if not near:
            raise
        raise TopicNotFound(exc.message, hint=f"Did you mean {near[0]}?", sqlstate=exc.sqlstate) from exc
