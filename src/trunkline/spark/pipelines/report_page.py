"""The report page: a self-contained HTML file."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from html import escape
from typing import Any

from trunkline.spark.pipelines import svg

Row = Mapping[str, Any]
Tables = Mapping[str, Sequence[Row]]

_STYLE = """
:root { color-scheme: light dark; --page: #f6f7f9; --card: #fff; --ink: #1b2430; --soft: #5c6878; --rule: #e1e5ea;
  --good: #0a7d4f; --bad: #c0352b; --c0: #2468c8; --c1: #c8601c; --c2: #178a68; --c3: #8b4bb8; --c4: #b28a00; --c5:
  #b8326f; }
@media (prefers-color-scheme: dark) { :root { --page: #11161d; --card: #1a212b; --ink: #e5eaf0; --soft: #98a5b5;
  --rule: #2c3643; --good: #45c690; --bad: #f0776c; --c0: #6aa5f5; --c1: #f2985c; --c2: #4cc7a0; --c3: #c392ec; --c4:
  #e0bc46; --c5: #ec7fae; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--ink); font: 15px/1.5 system-ui, -apple-system, "Segoe UI",
  sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 32px 20px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; }
h2 { font-size: 18px; margin: 0 0 2px; }
h3 { font-size: 14px; margin: 20px 0 6px; }
p { margin: 0 0 12px; color: var(--soft); }
a { color: var(--c0); }
nav { margin: 12px 0 20px; display: flex; flex-wrap: wrap; gap: 4px 16px; font-size: 14px; }
section { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 20px 22px; margin: 0 0
  18px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 12px; margin: 0 0 18px; }
.tile { background: var(--card); border: 1px solid var(--rule); border-radius: 10px; padding: 14px 16px; }
.tile b { display: block; font-size: 24px; font-weight: 650; line-height: 1.2; }
.tile span { color: var(--soft); font-size: 13px; }
.tile.bad b { color: var(--bad); }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px; }
th, td { text-align: left; padding: 6px 12px 6px 0; border-bottom: 1px solid var(--rule); vertical-align: top; }
th { color: var(--soft); font-weight: 550; white-space: nowrap; }
.n + :not(.n) { padding-left: 12px; }
.n { text-align: right; font-variant-numeric: tabular-nums; white-space: nowrap; }
td code { font: 13px/1.4 ui-monospace, monospace; display: inline-block; min-width: 12em; overflow-wrap: anywhere; }
td.bad { color: var(--bad); }
svg { display: block; width: 100%; height: auto; min-width: 560px; max-width: 960px; margin: 8px 0 4px; }
.empty { font-style: italic; }
.grid { stroke: var(--rule); }
.tick, .label, .value { fill: var(--soft); font-size: 12px; }
.label { fill: var(--ink); }
.line { fill: none; stroke-width: 2; stroke-linejoin: round; }
.dot { opacity: 0; }
.dot:hover, .dot.only { opacity: 1; }
.legend { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; color: var(--soft); margin-top: 8px; }
.key { display: inline-block; width: 10px; height: 10px; border-radius: 2px; margin-right: 6px; }
""" + "".join(
    f".line.s{n} {{ stroke: var(--c{n}); }} .dot.s{n}, .bar.s{n} {{ fill: var(--c{n}); }} "
    f".key.s{n} {{ background: var(--c{n}); }} "
    for n in range(svg.SERIES)
)

_SECTIONS = (
    ("throughput", "Throughput"),
    ("latency", "Latency"),
    ("attempts", "Attempts"),
    ("dead", "Dead letters"),
    ("lag", "Lag"),
    ("keys", "Hot keys"),
    ("sizes", "Payload sizes"),
)


def render(tables: Tables, *, start: datetime, end: datetime, step: timedelta) -> str:
    """Return the page as HTML."""
    parts = [_tiles(tables)]
    for name, title in _SECTIONS:
        parts.append(f'<section id="{name}"><h2>{title}</h2>{_RENDER[name](tables, step)}</section>')
    period = f"{start:%Y-%m-%d %H:%M} to {end:%Y-%m-%d %H:%M} UTC, in steps of {svg.seconds(step.total_seconds())}"
    links = "".join(f'<a href="#{name}">{title}</a>' for name, title in _SECTIONS)
    return (
        '<!doctype html><html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width">'
        f"<title>Delivery report</title><style>{_STYLE}</style></head><body><main><h1>Delivery report</h1><p>{period}; "
        f"generated {datetime.now(UTC):%Y-%m-%d %H:%M} UTC from the log, the archive and the delivery history.</p>"
        f"<nav>{links}</nav>{''.join(parts)}</main></body></html>\n"
    )


# Column of a table: title, formatter, and true to align right.
Shown = tuple[str, Callable[[Row], str], bool]


def _table(rows: Sequence[Row], columns: Sequence[Shown]) -> str:
    if not rows:
        return svg.empty()
    head = "".join(f"<th{' class=n' if right else ''}>{escape(title)}</th>" for title, _, right in columns)
    body = "".join(
        "<tr>" + "".join(f"<td{' class=n' if right else ''}>{make(row)}</td>" for _, make, right in columns) + "</tr>"
        for row in rows
    )
    return f'<div class="wide"><table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'


def _text(name: str) -> Callable[[Row], str]:
    return lambda row: escape("-" if row[name] is None else str(row[name]))


def _code(name: str) -> Callable[[Row], str]:
    return lambda row: f"<code>{escape('-' if row[name] is None else str(row[name]))}</code>"


def _in(show: Callable[[float], str], name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else escape(show(float(row[name])))


def _time(name: str) -> Callable[[Row], str]:
    return lambda row: "-" if row[name] is None else f"{row[name].astimezone(UTC):%Y-%m-%d %H:%M:%S}"


def _tiles(tables: Tables) -> str:
    queues = tables["queues"]
    dead = sum(row["messages"] for row in tables["dead_letters"])
    delivered = sum(row["deliveries"] for row in queues)
    acked = sum(row["acked"] for row in queues)
    tiles = [
        (svg.number(sum(row["messages"] for row in tables["topics"])), "messages published", False),
        (svg.size(sum(row["bytes"] for row in tables["topics"])), "of payload", False),
        (svg.number(delivered), "deliveries from queues", False),
        (f"{acked / delivered:.1%}" if delivered else "-", "of deliveries acked", False),
        (svg.number(dead), "dead letters", dead > 0),
    ]
    return (
        '<div class="tiles">'
        + "".join(
            f'<div class="tile{" bad" if bad else ""}"><b>{escape(value)}</b><span>{words}</span></div>'
            for value, words, bad in tiles
        )
        + "</div>"
    )


def _series(rows: Iterable[Row], name: str, value: str, per: float = 1) -> dict[str, list[tuple[datetime, float]]]:
    """Return the largest series, sorted by name, so that a name keeps its colour across charts."""
    series: dict[str, list[tuple[datetime, float]]] = {}
    for row in sorted(rows, key=lambda row: row["at"]):
        if row[value] is not None:
            series.setdefault(str(row[name]), []).append((row["at"].astimezone(UTC), row[value] / per))
    largest = sorted(series, key=lambda each: -sum(value for _, value in series[each]))
    return {each: series[each] for each in sorted(largest[: svg.SERIES])}


def _throughput(tables: Tables, step: timedelta) -> str:
    series = _series(tables["throughput"], "topic", "messages", step.total_seconds())
    columns: list[Shown] = [
        ("topic", _text("topic"), False),
        ("messages", _in(svg.number, "messages"), True),
        ("only in archive", _in(svg.number, "archived"), True),
        ("payload", _in(svg.size, "bytes"), True),
        ("keys (about)", _in(svg.number, "keys"), True),
        ("first", _time("first_at"), True),
        ("last", _time("last_at"), True),
    ]
    return f"<p>Messages published per second.</p>{svg.lines(series)}{_table(tables['topics'], columns)}"


def _latency(tables: Tables, step: timedelta) -> str:
    stages = (("wait", "publish to claim"), ("work", "claim to settle"), ("total", "publish to ack"))
    rows = [
        {"queue": row["queue"], "stage": heading, **{f"p{p}": row[f"{stage}_p{p}"] for p in (50, 95, 99)}}
        for row in tables["queues"]
        for stage, heading in stages
    ]
    columns: list[Shown] = [
        ("queue", _text("queue"), False),
        ("time from", _text("stage"), False),
        *((title, _in(svg.seconds, f"p{p}"), True) for p, title in ((50, "median"), (95, "p95"), (99, "p99"))),
    ]
    out = ["<p>Percentiles over messages: publish to first claim, claim to settle, and publish to ack.</p>"]
    out.append(_table(rows, columns))
    for stage, heading in (
        ("wait_p99", "Publish to claim, 99th percentile"),
        ("work_p99", "Claim to settle, 99th percentile"),
    ):
        out.append(f"<h3>{heading}</h3>{svg.lines(_series(tables['latency'], 'queue', stage), show=svg.seconds)}")
    return "".join(out)


def _attempts(tables: Tables, step: timedelta) -> str:
    counts: dict[int, float] = {}
    for row in tables["attempts"]:
        counts[row["attempt"]] = counts.get(row["attempt"], 0) + row["messages"]
    columns: list[Shown] = [
        ("queue", _text("queue"), False),
        *(
            (name, _in(svg.number, name), True)
            for name in ("deliveries", "acked", "nacked", "expired", "released", "buried", "dead")
        ),
        ("most attempts", _in(svg.number, "max_attempt"), True),
    ]
    bins = [(str(attempt), counts[attempt]) for attempt in sorted(counts)]
    text = "<p>Deliveries by attempt, and their outcomes.</p>"
    return f"{text}{svg.columns(bins)}{_table(tables['queues'], columns)}"


def _dead(tables: Tables, step: timedelta) -> str:
    columns: list[Shown] = [
        ("messages", _in(svg.number, "messages"), True),
        ("queue", _text("queue"), False),
        ("error", _code("fingerprint"), False),
        ("first", _time("first_at"), True),
        ("last", _time("last_at"), True),
        ("example", _code("example"), False),
    ]
    return "<p>Grouped by error, with numbers, ids and addresses masked.</p>" + _table(tables["dead_letters"][:50], columns)


def _lag(tables: Tables, step: timedelta) -> str:
    behind = svg.lines(_series(tables["lag"], "reader", "lag"))
    age = svg.lines(_series(tables["lag"], "reader", "oldest_age"), show=svg.seconds)
    return f"<p>Unfinished messages of each group and queue.</p>{behind}<h3>Age of the oldest message</h3>{age}"


def _keys(tables: Tables, step: timedelta) -> str:
    rows = tables["hot_keys"][:15]
    columns: list[Shown] = [
        ("topic", _text("topic"), False),
        ("key", _code("key"), False),
        ("messages", _in(svg.number, "messages"), True),
        ("share of topic", lambda row: f"{row['share']:.1%}", True),
        ("payload", _in(svg.size, "bytes"), True),
    ]
    hot = [(f"{row['topic']} / {row['key']}", float(row["messages"])) for row in rows]
    return (
        "<p>Keys with the most messages. All messages of a key are in one partition, so a hot key limits parallelism.</p>"
        f"{svg.bars(hot)}{_table(rows, columns)}"
    )


def _sizes(tables: Tables, step: timedelta) -> str:
    counts: dict[int, float] = {}
    for row in tables["sizes"]:
        counts[row["upto"]] = counts.get(row["upto"], 0) + row["messages"]
    exponents = [upto.bit_length() - 1 for upto in counts]
    bins = (
        [(f"≤{svg.size(2**e)}", counts.get(2**e, 0)) for e in range(min(exponents), max(exponents) + 1)] if exponents else []
    )
    columns: list[Shown] = [
        ("topic", _text("topic"), False),
        *((f"p{p}", _in(svg.size, f"size_p{p}"), True) for p in (50, 95, 99)),
        ("largest", _in(svg.size, "size_max"), True),
    ]
    return f"<p>Messages by payload size.</p>{svg.columns(bins)}{_table(tables['topics'], columns)}"


_RENDER: Mapping[str, Callable[[Tables, timedelta], str]] = {
    "throughput": _throughput,
    "latency": _latency,
    "attempts": _attempts,
    "dead": _dead,
    "lag": _lag,
    "keys": _keys,
    "sizes": _sizes,
}
