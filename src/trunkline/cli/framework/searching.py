"""The options of `topic search` and `queue search`, and the last line of a search."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import click
import msgspec

from trunkline.cli.framework.command import Count, Duration, Invocation, stacked
from trunkline.cli.framework.input import parse_headers
from trunkline.cli.framework.output import Column, size_text
from trunkline.cli.framework.positions import Position
from trunkline.messaging import Messaging, QueuesApi, SearchOptions, TopicsApi
from trunkline.types import Search, Selection

Searchable = Callable[[Messaging], TopicsApi | QueuesApi]
RANGES = (
    Column("partition", "partition", right=True),
    Column("first", "first_offset", right=True),
    Column("last", "last_offset", right=True),
    Column("messages", "messages", right=True),
    Column("size", lambda row: size_text(row.bytes), right=True),
)


_PLACES = "earliest, latest, an offset, a time, or an age such as 1h."
search_options = stacked(
    click.option("--key", help="Only messages with this key."),
    click.option("--routing", metavar="PATTERN", help="Only routing keys that match: * is one word, # any number."),
    click.option("--label", "labels", multiple=True, help="Only messages with this label; may be repeated."),
    click.option("-H", "--header", "headers", multiple=True, metavar="NAME=VALUE", help="Only messages with this header."),
    click.option("--body", "paths", multiple=True, metavar="PATH", help="Only JSON payloads that have this JSON path."),
    click.option("--text", help="Only payloads that contain this text."),
    click.option("--regex", help="Only payloads that match this regular expression of Postgres."),
    click.option("--partition", "partitions", multiple=True, type=Count(0), help="Only this partition; may be repeated."),
    click.option("--start", type=Position(), default="earliest", show_default=True, help=f"Position: {_PLACES}"),
    click.option("--end", type=Position(), default="latest", show_default=True, help=f"Position: {_PLACES}"),
    click.option("--limit", type=Count(1, 1000), default=50, show_default=True, help="Stop after this many matches."),
    click.option("--oldest-first", is_flag=True, help="Search forwards instead of backwards."),
    click.option("--budget", type=Duration(), default="5s", show_default=True, help="Stop after this time, at most 1m."),
    click.option("--after", metavar="JSON", help="Continue an earlier search."),
    click.option("--estimate", is_flag=True, help="Show what the search would read, without searching."),
)


def run_search(invocation: Invocation, name: str, columns: tuple[Column, ...], noun: Searchable, given: Any) -> None:
    """Run the search, or estimate it, and print the result."""
    chosen = _selection(given)
    if given["estimate"]:
        rows = invocation.run(
            lambda mq: noun(mq).estimate_search(
                name, chosen, partitions=given["partitions"] or None, start=given["start"], end=given["end"]
            )
        )
        invocation.out.many(rows, RANGES)
        return
    result = invocation.run(lambda mq: _found(noun(mq), name, chosen, given))
    invocation.out.many(result.matches, columns)
    _report(result)


def _selection(given: dict[str, Any]) -> Selection:
    """Return the selection of the given options."""
    chosen: dict[str, Any] = {
        "key": given["key"],
        "routing": given["routing"],
        "label": list(given["labels"]) or None,
        "headers": parse_headers(given["headers"]),
        "body": list(given["paths"]) or None,
        "text": given["text"],
        "regex": given["regex"],
    }
    return msgspec.convert({name: value for name, value in chosen.items() if value is not None}, Selection)


async def _found(noun: TopicsApi | QueuesApi, name: str, chosen: Selection, given: dict[str, Any]) -> Search[Any]:
    options = SearchOptions(
        partitions=given["partitions"] or None,
        start=given["start"],
        end=given["end"],
        limit=given["limit"],
        backwards=not given["oldest_first"],
        budget=given["budget"],
        after=_after(given["after"]),
    )
    return await noun.search(name, chosen, **options)


def _after(text: str | None) -> dict[str, int] | None:
    if text is None:
        return None
    try:
        return msgspec.json.decode(text, type=dict[str, int])
    except msgspec.DecodeError as exc:
        raise click.BadParameter(f"must be what an earlier search has printed: {exc}", param_hint="'--after'") from None


def _report(result: Search[Any]) -> None:
    """Say on standard error what the search did, and how to continue."""
    words = {
        "end": "all",
        "limit": "enough matches",
        "rows": "enough messages",
        "bytes": "enough data",
        "time": "time is up",
    }
    line = (
        f"scanned {result.scanned:,}, matched {result.matched:,}, {result.seconds:.2f} s, stopped: {words[result.stopped]}"
    )
    if result.next is not None:
        line += f"; continue with --after '{json.dumps(result.next, separators=(',', ':'))}'"
    click.echo(line, err=True)
