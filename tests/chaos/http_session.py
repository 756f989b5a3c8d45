"""A process that talks to HTTP servers only, with the same notebook as one that talks SQL."""

from __future__ import annotations

import time
from base64 import b64decode
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx

from tests.chaos.session import Session

_RETRY_SECONDS = 0.05
# Longer than a server waits for a database connection, so that late responses still arrive.
_PATIENCE_SECONDS = 45.0
# The server says that it does not know itself.
_UNKNOWN = "outcome_unknown"


class HttpSession(Session):
    """Calls of one process, each to any of the servers."""

    def __init__(self, url: str, directory: Path, proc: str, seed: int, servers: Sequence[str]) -> None:
        super().__init__(url, directory, proc, seed)
        self.servers = list(servers)
        # without the certificates of the machine, which take 50 ms of CPU to read: the servers speak plain HTTP
        self.http = httpx.Client(timeout=_PATIENCE_SECONDS, verify=False)
        self._queue = ""

    def anywhere(self) -> str:
        return self.random.choice(self.servers)

    def ask(self, op: int, method: str, path: str, *, vague: bool = False, **request: Any) -> httpx.Response | None:
        """Return the result of a call; None for no result, or for an error, which is recorded here.

        `vague`: a call that failed may still have taken effect, unless the connection was refused.
        """
        try:
            answer = self.http.request(method, self.anywhere() + path, **request)
        except (httpx.ConnectError, httpx.ConnectTimeout):
            self.recorder.done(op, "fail")
            time.sleep(_RETRY_SECONDS)
            return None
        except httpx.TransportError:
            self.recorder.done(op, "info")
            return None
        if answer.is_success:
            return answer
        problem = answer.json()
        outcome = "info" if vague or problem["error"] == _UNKNOWN else "fail"
        self.recorder.done(op, outcome, code=problem["error"], message=problem["detail"])
        time.sleep(_RETRY_SECONDS)
        return None

    def claim(  # type: ignore[override]
        self,
        queue: str,
        limit: int,
        lease: float,
        *,
        relaxed: bool = True,
        labels: Sequence[str] | None = None,
        wait: float | None = None,
    ) -> list[list[Any]] | None:
        """The server always asks for a relaxed commit. Now and then the claim waits."""
        self._queue = queue
        asked = {"labels": list(labels)} if labels else {}
        op = self.recorder.invoke("claim", queue=queue, lease=lease, relaxed=True, **asked)
        wait = self.random.choice((0, 0.5, 3)) if wait is None else wait
        body = {"limit": limit, "lease_seconds": lease, "wait": wait, **asked}
        answer = self.ask(op, "POST", f"/v1/queues/{queue}/claims", json=body, vague=True)
        if answer is None:
            return None
        rows = [delivery(row) for row in answer.json()["deliveries"]]
        self.recorder.done(op, "ok", rows=rows)
        return rows

    def settle(
        self,
        verb: str,
        receipts: Sequence[str],
        *,
        seconds: float | None = None,
        delay: float | None = None,
        hold: float | None = None,
        keep: bool = True,
    ) -> list[str] | None:
        """There are no transactions over HTTP, so `hold` and `keep` mean nothing."""
        op = self.recorder.invoke("settle", verb=verb, receipts=list(receipts), seconds=seconds)
        before = time.time()
        body: dict[str, Any] = {"receipts": list(receipts)}
        if delay is not None:
            body["lease_seconds" if verb == "extend" else "delay_seconds"] = delay
        answer = self.ask(op, "POST", f"/v1/queues/{self._queue}/{verb}", json=body)
        if answer is None:
            return None
        answers = [row["result"] for row in answer.json()["results"]]
        self.recorder.done(op, "ok", before=before, answers=answers, after=time.time())
        return answers


def delivery(row: dict[str, Any]) -> list[Any]:
    """Receipt, attempt, deadline, content, partition and offset."""
    deadline = datetime.fromisoformat(row["deadline"]).timestamp()
    place = f"{row['topic'] or ''}/{row['partition']}"
    return [row["receipt"], row["attempt"], deadline, content(row), place, row["offset"]]


def content(row: dict[str, Any]) -> str:
    """Compare published messages, in whatever form the server returns them."""
    payload: str = row["payload"]
    return b64decode(payload).decode() if row["encoding"] == "base64" else payload
