"""`topic publish` and `queue enqueue`: one message, or an NDJSON stream that can be interrupted and repeated."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any

import click
import msgspec

from trunkline.cli.framework import confirm
from trunkline.cli.framework.command import Duration, Invocation, stacked
from trunkline.cli.framework.input import (
    JSON,
    InputLine,
    InvalidLine,
    check_body,
    lines,
    message_of,
    open_input,
    parse_headers,
    whole_file,
)
from trunkline.cli.framework.output import progress
from trunkline.errors import OutcomeUnknown, TrunklineError
from trunkline.types import NewMessage, Published

if TYPE_CHECKING:
    from trunkline.messaging import Messaging

_BATCH = 1000
_PATIENCE = 5.0
_TOLD = 10


class Destination(msgspec.Struct, frozen=True):
    """A publish target: the publish methods of a topic or queue."""

    name: str
    one: Callable[..., Awaitable[Published]]
    many: Callable[..., Awaitable[list[Published]]]
    max_payload: int


class Tally(msgspec.Struct):
    """Counts of processed lines."""

    stored: int = 0
    duplicates: int = 0
    failed: int = 0
    unknown: int = 0

    def add(self, results: list[Published]) -> None:
        again = sum(result.duplicate for result in results)
        self.duplicates += again
        self.stored += len(results) - again


# options of both commands
options = stacked(
    click.argument("body", required=False),
    click.option(
        "--file", "path", metavar="PATH", help="NDJSON file with one message per line; `-` for stdin, the default."
    ),
    click.option("--body-file", metavar="PATH", help="File with the body of one message."),
    click.option("--key", help="Ordering key."),
    click.option("--routing-key", help="Routing key, for subscription patterns."),
    click.option("--label", help="Label, by which consumers can filter."),
    click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Header; may be repeated."),
    click.option("--content-type", help="Content type of the body.  [default: application/json]"),
    click.option("--delay", type=Duration(), help="Delay before delivery."),
    click.option("--idempotency-key", help="Idempotency key of one message: a repeat with the same key stores nothing."),
    click.option(
        "--idempotency-prefix",
        help="Use PREFIX:LINE as idempotency keys, so that a repeated run stores only missing lines.",
    ),
    click.option("--envelope", is_flag=True, help="Read whole messages per line, as written by `topic read -o jsonl`."),
    click.option("--continue-on-error", is_flag=True, help="Skip and count rejected lines (exit code 1)."),
    confirm.dry_run("Check the input and show what would be stored."),
)


def publish(
    invocation: Invocation, target: Callable[[Messaging], Awaitable[Destination]], values: dict[str, Any], **extra: Any
) -> int:
    """Publish and return the exit code."""
    body, path, body_file = values.pop("body"), values.pop("path"), values.pop("body_file")
    if sum(source is not None for source in (body, path, body_file)) > 1:
        raise click.UsageError("specify only one of BODY, --file and --body-file")
    single = body is not None or body_file is not None
    if single and (values["idempotency_prefix"] or values["envelope"] or values["continue_on_error"]):
        raise click.UsageError("--idempotency-prefix, --envelope and --continue-on-error require lines (--file or stdin)")
    if not single and values["idempotency_key"]:
        raise click.UsageError("--idempotency-key requires a single message; use --idempotency-prefix for lines")
    fields = {name: values[name] for name in ("key", "routing_key", "label", "delay")} | extra
    fields["headers"] = parse_headers(values["headers"])
    content_type = values["content_type"] or JSON
    if not single:
        descriptor = open_input(path)
        if os.isatty(descriptor):
            invocation.say("One JSON value per line; Ctrl-D ends.")
        stream = Stream(invocation, descriptor, fields, content_type, **{name: values[name] for name in _STREAM_OPTIONS})
        return invocation.run(lambda mq: stream.run(mq, target))

    async def one(mq: Messaging) -> int:
        to = await target(mq)
        payload = body.encode(errors="surrogateescape") if body is not None else whole_file(body_file, to.max_payload)
        check_body(payload, content_type)
        if values["dry_run"]:
            invocation.say(f"would store 1 message of {len(payload):,} bytes in {to.name}")
            return 0
        published = await to.one(
            to.name, payload, content_type=content_type, idempotency_key=values["idempotency_key"], **_given(fields)
        )
        invocation.out.one(published)
        return 0

    return invocation.run(one)


_STREAM_OPTIONS = ("idempotency_prefix", "envelope", "continue_on_error", "dry_run")


def _given(fields: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in fields.items() if value is not None}


class Stream:
    """Publishes lines in order, in batches. Each batch is stored as a whole or not at all."""

    def __init__(
        self,
        invocation: Invocation,
        descriptor: int,
        fields: dict[str, Any],
        content_type: str,
        *,
        idempotency_prefix: str | None,
        envelope: bool,
        continue_on_error: bool,
        dry_run: bool,
    ) -> None:
        self._invocation = invocation
        self._descriptor = descriptor
        self._fields = fields
        self._content_type = content_type
        self._prefix = idempotency_prefix
        self._envelope = envelope
        self._tolerant = continue_on_error
        self._dry_run = dry_run
        self._tally = Tally()
        self._last_line = 0

    async def run(self, mq: Messaging, target: Callable[[Messaging], Awaitable[Destination]]) -> int:
        to = await target(mq)
        try:
            with progress(f"to {to.name}", quiet=self._invocation.quiet) as done:
                async for some in lines(self._descriptor):
                    for batch in self._batches(some):
                        await self._store(to, batch)
                        done(self._tally.stored + self._tally.duplicates)
        except (Exception, asyncio.CancelledError):
            self._say_where_it_stopped()
            raise
        if self._dry_run:
            self._invocation.say(
                f"would store {self._tally.stored:,} messages in {to.name}; {self._tally.failed:,} lines rejected"
            )
        else:
            self._invocation.out.one(self._tally)
        return 1 if self._tally.failed else 0

    def _batches(self, some: list[InputLine]) -> Iterator[list[tuple[int, NewMessage]]]:
        batch: list[tuple[int, NewMessage]] = []
        for line in some:
            try:
                batch.append((line.number, self._message(line)))
            except InvalidLine as exc:
                if not self._tolerant:
                    if batch:
                        yield batch  # store the lines before the invalid one, so that a repeat can start there
                    raise
                self._refuse(exc.message)
            if len(batch) == _BATCH:
                yield batch
                batch = []
        if batch:
            yield batch

    def _message(self, line: InputLine) -> NewMessage:
        fields = dict(self._fields)
        if self._prefix is not None:
            fields["idempotency_key"] = f"{self._prefix}:{line.number}"
        return message_of(line, envelope=self._envelope, content_type=self._content_type, **fields)

    def _refuse(self, reason: str) -> None:
        self._tally.failed += 1
        if self._tally.failed <= _TOLD:
            self._invocation.say(f"rejected: {reason}")
        elif self._tally.failed == _TOLD + 1:
            self._invocation.say("rejected: further lines are only counted")

    async def _store(self, to: Destination, batch: list[tuple[int, NewMessage]]) -> None:
        if self._dry_run:
            self._tally.stored += len(batch)
            return
        self._tally.unknown = len(batch)
        flight = asyncio.ensure_future(self._send(to, batch))
        try:
            await asyncio.shield(flight)
        except asyncio.CancelledError:
            # wait for its result, so that nothing is left unknown
            await asyncio.wait([flight], timeout=_PATIENCE)
            raise
        finally:
            if flight.done() and not isinstance(flight.exception(), OutcomeUnknown):
                self._tally.unknown = 0

    async def _send(self, to: Destination, batch: list[tuple[int, NewMessage]]) -> None:
        if not self._tolerant:
            try:
                self._tally.add(await to.many(to.name, [message for _, message in batch]))
            except TrunklineError as exc:
                if not isinstance(exc, OutcomeUnknown):
                    exc.message = f"lines {batch[0][0]} to {batch[-1][0]} were not stored: {exc.message}"
                raise
        else:
            # concurrent publishes share a statement but fail individually
            results = await asyncio.gather(*(self._one(to, message) for _, message in batch), return_exceptions=True)
            self._tally.add([result for result in results if isinstance(result, Published)])
            for (number, _), result in zip(batch, results, strict=True):
                if isinstance(result, BaseException):
                    if not isinstance(result, TrunklineError) or result.exit_code not in (2, 4):
                        raise result
                    self._refuse(f"line {number}: {result.message}")
        self._last_line = batch[-1][0]

    async def _one(self, to: Destination, message: NewMessage) -> Published:
        fields = {name: getattr(message, name) for name in message.__struct_fields__ if name != "body"}
        return await to.one(to.name, message.body, **_given(fields))

    def _say_where_it_stopped(self) -> None:
        tally = self._tally
        text = f"stopped: {tally.stored:,} stored, {tally.duplicates:,} duplicates, {tally.unknown:,} unknown"
        if self._last_line:
            text += f"; lines 1 to {self._last_line} are done"
        if self._prefix is not None:
            text += "; run the same command again to resume"
        elif tally.unknown:
            text += "; with --idempotency-prefix, a repeat would store only the missing lines"
        self._invocation.say(text)
