"""Logs: one JSON object per line on stdout."""

from __future__ import annotations

import logging
import sys
from datetime import UTC, datetime

import msgspec


class JsonFormatter(logging.Formatter):
    """JSON escapes line breaks in values, which prevents log forging."""

    def format(self, record: logging.LogRecord) -> str:
        entry = {
            "time": datetime.fromtimestamp(record.created, UTC),
            "level": record.levelname,
            "logger": record.name,
            "msg": record.getMessage(),
            **getattr(record, "fields", {}),
        }
        if record.exc_info:
            entry["exception"] = self.formatException(record.exc_info)
        return msgspec.json.encode(entry).decode()


def set_up(level: str = "INFO") -> None:
    handler = logging.StreamHandler(sys.stdout)
    handler.setFormatter(JsonFormatter())
    root = logging.getLogger()
    root.handlers[:] = [handler]
    root.setLevel(level)
    for name in ("_granian", "granian.access"):
        logger = logging.getLogger(name)
        logger.handlers[:] = []
        logger.propagate = True
