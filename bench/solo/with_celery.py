"""Celery: a no-op task, acked after completion. The environment sets broker, queue and prefetch."""

from __future__ import annotations

import os

from celery import Celery  # type: ignore[import-untyped,unused-ignore]

app = Celery("bench", broker=os.environ["CELERY_BROKER"])
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_acks_late=True,
    task_default_queue=os.environ["CELERY_QUEUE"],
    task_ignore_result=True,
    worker_prefetch_multiplier=int(os.environ["CELERY_PREFETCH"]),
)


@app.task(name="noop")  # type: ignore[untyped-decorator,unused-ignore]
def noop(body: str) -> None:
    """The no-op task."""
