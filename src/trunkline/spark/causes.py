"""What Spark says went wrong, as one of our errors. A task's error reaches the driver as text only."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches

from trunkline import errors
from trunkline.db import spark as calls
from trunkline.errors import TopicNotFound, TrunklineError
from trunkline.spark.connections import plain

_RAISED = re.compile(r"^(?:[\w.]*\.)?errors\.(\w+): (.*)$", re.MULTILINE)
_CAUSED = re.compile(r"^\s*Caused by: (?:[\w.$]+: )*(.+)$", re.MULTILINE)
_UNKNOWN_TOPIC = re.compile("topic '(.+)' does not exist")
_WORDS = 500


def cause(told: str) -> TrunklineError:
    """Our error inside one of Spark's, else Spark's own words in short."""
    for name, message in reversed(_RAISED.findall(told)):
        kind = getattr(errors, name, None)
        if isinstance(kind, type) and issubclass(kind, TrunklineError):
            words, _, hint = message.rpartition(" (")
            return kind(words or message, hint=hint.removesuffix(")") if words else None)
    if trace := _of_python(told):
        return errors.PipelineFailed(trace[-1][:_WORDS], detail="\n".join(trace)[-_WORDS * 8 :])
    words = (_of_java(told) or "Spark does not say why")[:_WORDS]
    if (reasons := _CAUSED.findall(told)) and reasons[-1] not in words:
        words = f"{words[: _WORDS // 2]}: {reasons[-1]}"[:_WORDS]
    # an error with a name, such as [UNRESOLVED_COLUMN], is about what the user wrote: the rest is Spark's plan
    return errors.PipelineFailed(words, detail=None if words.startswith("[") else told[: _WORDS * 8])


def _of_python(told: str) -> list[str]:
    """The lines of the last exception that a Python process raised, such as one of the user's functions."""
    _, found, trace = told.rpartition("Traceback (most recent call last):\n")
    lines = trace.splitlines() if found else []
    ends = next((number for number, line in enumerate(lines) if line and not line[0].isspace()), -1)
    return lines[: ends + 1]


def _of_java(told: str) -> str | None:
    """The first line that says more than which call it was."""
    lines = (line.strip().removeprefix(": ") for line in told.splitlines())
    return next((line for line in lines if line and not line.startswith("An error occurred while calling ")), None)


@contextmanager
def near_topics(url: str) -> Iterator[None]:
    """An unknown topic is answered with the nearest one that there is."""
    try:
        yield
    except TopicNotFound as exc:
        asked = _UNKNOWN_TOPIC.fullmatch(exc.message)
        if asked is None:
            raise
        with plain(url) as conn:
            near = get_close_matches(asked[1], calls.topic_names(conn), n=1)
        if not near:
            raise
        raise TopicNotFound(exc.message, hint=f"did you mean {near[0]}?", sqlstate=exc.sqlstate) from exc
