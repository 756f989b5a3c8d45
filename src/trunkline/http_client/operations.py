"""Jobs, workers, limits, pipelines and the state of the database over HTTP."""

from __future__ import annotations

import builtins
from typing import Any, TypeVar
from uuid import UUID

import msgspec

from trunkline.db.calls.job_records import JobRow, JobView, LimitRow, WorkerRow
from trunkline.db.calls.list_records import Finding, Progress
from trunkline.db.calls.spark import Pipeline
from trunkline.http_client.resource import HttpResource
from trunkline.http_client.transport import PAGE, decoded, quoted
from trunkline.types import Duration
from trunkline.wire import payload_bytes, seconds

T = TypeVar("T")


class _Lists(HttpResource):
    """Reads lists without pages."""

    async def _rows(self, path: str, kind: type[T], **query: Any) -> builtins.list[T]:
        body = await self._transport.ask("GET", path, query=query)
        return [msgspec.convert(row, kind, strict=False) for row in body["data"]]


class _Jobs(msgspec.Struct):
    data: list[JobRow]
    next: str | None = None


class _Details(msgspec.Struct):
    """A job with its payload and result as the server renders them; its other fields are those of `JobView`."""

    payload: msgspec.Raw
    encoding: str | None
    result: msgspec.Raw
    result_encoding: str | None


class HttpJobs(_Lists):
    """`client.jobs`"""

    async def list(
        self, queue: str | None = None, *, state: str | None = None, kind: str | None = None, limit: int = 100
    ) -> builtins.list[JobRow]:
        """List jobs of one queue or of all, by state."""
        path = "/v1/jobs" if queue is None else f"/v1/queues/{quoted(queue)}/jobs"
        rows: builtins.list[JobRow] = []
        after = None
        while len(rows) < limit:
            query = {"state": state, "kind": kind, "after": after, "limit": min(PAGE, limit - len(rows))}
            body = await self._transport.ask("GET", path, query=query, kind=_Jobs)
            rows += body.data
            after = body.next
            if after is None:
                break
        return rows

    async def get(self, id: UUID) -> JobView:
        """Get one job in any state."""
        response = await self._transport.send("GET", f"/v1/jobs/{id}")
        rendered = decoded(response.content, _Details)
        fields: dict[str, Any] = decoded(response.content, dict)
        for name in ("encoding", "result_encoding"):
            del fields[name]
        # bytes in JSON are base64; these two come as the server renders payloads
        fields |= {"payload": None, "result": None}
        job = msgspec.convert(fields, JobView, strict=False)
        return msgspec.structs.replace(
            job,
            payload=None if rendered.encoding is None else payload_bytes(rendered.payload, rendered.encoding),
            result=None if rendered.result_encoding is None else payload_bytes(rendered.result, rendered.result_encoding),
        )

    async def retry(self, id: UUID) -> str:
        """Retry a dead job. Returns its queue."""
        return str((await self._transport.ask("POST", f"/v1/jobs/{id}/retry"))["queue"])

    async def cancel(self, id: UUID, *, reason: str | None = None) -> str:
        """Cancel a job. Returns `requested`, `cancelled`, or the state of a job that has ended."""
        return str((await self._transport.ask("POST", f"/v1/jobs/{id}/cancel", {"reason": reason}))["result"])

    async def uncancel(self, id: UUID) -> str:
        """Withdraw a cancel request. Returns `withdrawn`, or the state of a job that has none."""
        return str((await self._transport.ask("DELETE", f"/v1/jobs/{id}/cancel"))["result"])

    async def workers(self, *, within: Duration = "1m") -> builtins.list[WorkerRow]:
        """List the workers that reported within this time."""
        return await self._rows("/v1/workers", WorkerRow, within=seconds(within))

    async def limits(self) -> builtins.list[LimitRow]:
        """List the limits over all processes."""
        return await self._rows("/v1/limits", LimitRow)


class HttpPipelines(_Lists):
    """`client.pipelines`"""

    async def list(self, *, state: str | None = None, name: str | None = None) -> builtins.list[Pipeline]:
        """List Spark pipelines and queries, the last report first."""
        return await self._rows("/v1/pipelines", Pipeline, state=state, name=name)

    async def progress(self, name: str, *, limit: int = 100) -> builtins.list[Progress]:
        """List the newest reports of a pipeline."""
        return await self._rows("/v1/pipeline-progress", Progress, name=name, limit=limit)


class HttpSystem(_Lists):
    """`client.system`"""

    async def doctor(self) -> builtins.list[Finding]:
        """Check durability and performance risks."""
        return await self._rows("/v1/doctor", Finding)
