"""Decides how to settle a job from the result of its handler."""

from __future__ import annotations

import asyncio
import traceback
from datetime import timedelta
from types import TracebackType
from typing import TYPE_CHECKING, Any

from trunkline.codec import duration
from trunkline.concurrency.aio import log
from trunkline.jobs.arguments import result_to_json
from trunkline.jobs.outcomes import Bury, Done, Retry, Snooze
from trunkline.jobs.processes import HandlerError
from trunkline.jobs.refusals import EffectUnknown, InvalidArguments
from trunkline.jobs.running import Item
from trunkline.jobs.running_calls import call
from trunkline.jobs.settling import Verdict

if TYPE_CHECKING:
    from trunkline.jobs.worker import Worker


class Judge:
    """Runs the jobs of one queue and decides how to settle each."""

    def __init__(self, worker: Worker, *, max_attempts: int, ordered: bool) -> None:
        self._worker = worker
        self._max_attempts = max_attempts
        self._ordered = ordered

    async def run(self, item: Item) -> Verdict | None:
        """Run the handler and return how to settle the job, or None if its lease was lost or it is already settled."""
        delivery, job = item.delivery, item.job
        if self._worker.cancels and (reason := await self._worker.cancelled(delivery.id)) is not None:
            return Verdict("bury", None, f"cancelled before it started: {reason}")
        if delivery.attempt > item.max_attempts:
            return Verdict("bury", None, f"its worker died in each of {item.max_attempts} attempts")
        definition = job.definition
        try:
            if definition.at_most_once:
                item.settled = await self._worker.settler.ack_now(item) == "done"
                if not item.settled:
                    return None
            if definition.timeout is not None:
                self._worker.give_time(item, definition.timeout.total_seconds())
            value = await call(self._worker, item)
        except asyncio.CancelledError as exc:
            if item.reason is not None:
                return self.stopped(item)
            if self._worker.closed:
                raise
            # raised by the handler itself: it awaited something that was cancelled
            return self._failed(item, exc)
        except (InvalidArguments, EffectUnknown) as exc:
            return Verdict("bury", None, f"{type(exc).__name__}: {exc}")
        except BaseException as exc:
            if item.reason is not None:
                return self.stopped(item)
            return self._failed(item, exc)
        if item.reason is not None and item.reason.startswith("timeout"):
            return self.stopped(item)
        return self._returned(item, value)

    def _returned(self, item: Item, value: Any) -> Verdict | None:
        match value:
            case Retry():
                return self._again(item, value.error or "the handler asked for a retry", duration(value.after))
            case Snooze():
                return Verdict("snooze", duration(value.after))
            case Bury():
                return Verdict("bury", None, value.reason)
            case Done():
                value = value.result
        if item.tracked and not (item.settled and item.result is not None):
            try:
                result = result_to_json(value)
            except (TypeError, ValueError, RecursionError) as exc:
                return Verdict("bury", None, f"the result cannot be stored: {exc}")
            if item.settled:
                self._worker.store_result(item, result)
            item.result = result
        return Verdict("ack")

    def stopped(self, item: Item) -> Verdict | None:
        kind, _, text = (item.reason or "").partition(": ")
        if kind == "lost":
            return None
        if kind == "stop":
            return Verdict("release")
        if kind == "cancel":
            return Verdict("bury", None, f"cancelled: {text}")
        return self._again(item, text, None, TimeoutError())

    def _failed(self, item: Item, exc: BaseException) -> Verdict:
        if isinstance(exc, HandlerError):
            text = f"{exc}\n{exc.trace}"
        else:
            lines = traceback.format_exception(type(exc), exc, _of_the_handler(exc.__traceback__), limit=-12)
            text = f"{type(exc).__name__}: {exc}\n{''.join(lines)}"
        log.warning(
            "job %s %s failed in attempt %s: %s",
            item.job.name,
            item.delivery.id,
            item.delivery.attempt,
            text.splitlines()[0],
        )
        return self._again(item, text, None, exc)

    def _again(self, item: Item, error: str, delay: timedelta | None, exc: BaseException | None = None) -> Verdict:
        """Retry after a delay, or bury the job if this was its last attempt or its error must not be retried."""
        definition, attempt = item.job.definition, item.delivery.attempt
        backoff = definition.backoff or self._worker.app.backoff
        for kind, other in definition.errors.items():
            if isinstance(exc, kind):
                if other is None:
                    return Verdict("bury", None, error)
                backoff = other
                break
        if attempt >= item.max_attempts:
            # at the queue's own limit, nack lets the queue record "max attempts" as the reason of the dead letter
            if attempt < self._max_attempts:
                return Verdict("bury", None, error)
            return Verdict("nack" if item.plain and not self._ordered else "bury", timedelta(0), error)
        return Verdict("nack", backoff.after(attempt) if delay is None else delay, error)


def _of_the_handler(trace: TracebackType | None) -> TracebackType | None:
    """Return the part of a traceback that starts outside this package, or all of it if none does."""
    frame = trace
    while frame is not None and str(frame.tb_frame.f_globals.get("__name__")).startswith("trunkline."):
        frame = frame.tb_next
    return frame or trace
