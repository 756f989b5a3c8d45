"""Write the tables and the chart of docs/explanation/performance.md from the kept runs in bench/results: `python
tools/docs_performance.py`, or `--check`.

Each row comes from the newest run that has it.
"""

from __future__ import annotations

import math
import re
import sys
from pathlib import Path
from typing import NamedTuple

import docs_diagrams as draw
from docs_diagrams import charts

ROOT = Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs" / "explanation" / "performance.md"
_BEGIN, _END = "<!-- begin {}: written by tools/docs_performance.py -->\n", "<!-- end {} -->"
_OURS = "trunkline"


class Figure(NamedTuple):
    """A row of a kept run."""

    file: str
    value: float
    unit: str
    ratio: float | None


class Comparison(NamedTuple):
    """A figure of ours beside one of another contestant. A ratio above 1 means that ours is better."""

    title: str
    workload: str
    ours: str
    other: str
    shown: str


COMPARED = [
    Comparison("claim + ack of 100", "claim_ack_batch", _OURS, "SKIP LOCKED table", "`SKIP LOCKED` table"),
    Comparison("claim + ack one by one", "claim_ack_single", _OURS, "SKIP LOCKED table", "`SKIP LOCKED` table"),
    Comparison("publish one", "publish_single", _OURS, "plain INSERT", "plain `INSERT`"),
    Comparison("publish one", "publish_single", _OURS, "counter-row log", "log with a counter row"),
    Comparison("publish 1,000", "publish_batch", _OURS, "raw COPY", "plain `COPY`"),
    Comparison("no-op jobs", "jobs, run", "trunkline jobs", "graphile-worker", "graphile-worker"),
    Comparison("no-op jobs", "jobs, run", "trunkline jobs", "pg-boss", "pg-boss"),
    Comparison("no-op jobs", "jobs, run", "trunkline jobs", "PgQueuer", "PgQueuer"),
    Comparison("no-op jobs", "jobs, run", "trunkline jobs", "Procrastinate", "Procrastinate"),
    Comparison("HTTP, publish one", "http, publish one", _OURS, "FastAPI + SKIP LOCKED, Granian", "textbook service"),
    Comparison("HTTP, publish one", "http, publish one", _OURS, "GET that does nothing", "empty `GET`"),
    Comparison(
        "HTTP, claim and ack 100", "http, claim and ack 100", _OURS, "FastAPI + SKIP LOCKED, Granian", "textbook service"
    ),
    Comparison("webhooks, one dispatcher", "push", "dispatcher", "plain aiohttp", "plain aiohttp, no queue"),
    Comparison("Spark, read", "spark, read to noop", _OURS, "Spark JDBC", "Spark JDBC"),
    Comparison("Spark, write exactly once", "spark, write", _OURS, "Spark JDBC", "Spark JDBC, at least once"),
]
# Latencies: the workload, the row, and what it is.
LATENCIES = [
    ("wakeup, idle", "queue, p50", "publish to an idle consumer of a queue, p50"),
    ("wakeup, idle", "queue, p99", "publish to an idle consumer of a queue, p99"),
    ("jobs, pickup", "p50", "enqueue to handler, idle worker, p50"),
    ("http, 1,000 long-pollers", "wake-up p99, published by another process", "publish to a long poll, 1,000 waiting, p99"),
    ("lateness", "due, p99", "delayed message: time after its due time, p99"),
    ("lateness", "lease ended, p99", "expired lease: time to the next delivery, p99"),
]
HELD = [("before", "before"), ("held", "while it is open"), ("after", "after")]


def figures() -> dict[tuple[str, str], Figure]:
    """Return the newest figure of each workload and contestant, for the smallest payload."""
    found: dict[tuple[str, str], Figure] = {}
    for run in reversed(charts.kept_runs()):
        for row in reversed(run.rows):
            contestant = re.sub(r" \d+(\.\d+)+$", "", row["name"])
            found[row["workload"], contestant] = Figure(run.path.name, row["value"], row["unit"], row.get("ratio"))
    return found


def _link(figure: Figure) -> str:
    return f"[run](../../bench/results/{figure.file})"


def ratios(found: dict[tuple[str, str], Figure]) -> list[tuple[Comparison, Figure, Figure, float]]:
    """Return the comparisons with their ratios, the worst first. They are medians over rounds if the run has them."""
    rows = []
    for each in COMPARED:
        ours, other = found[each.workload, each.ours], found[each.workload, each.other]
        rows.append((each, ours, other, other.ratio if other.ratio is not None else ours.value / other.value))
    return sorted(rows, key=lambda row: row[3])


def table(found: dict[tuple[str, str], Figure]) -> str:
    lines = ["| workload | Trunkline | compared with | ratio | source |", "|---|---:|---|---:|---|"]
    for each, ours, other, ratio in ratios(found):
        lines.append(
            f"| {each.title} | {charts.number(ours.value)} {ours.unit} | {each.shown}: {charts.number(other.value)}"
            f" | {ratio:.2f} | {_link(other)} |"
        )
    return "\n".join(lines) + "\n"


def latencies(found: dict[tuple[str, str], Figure]) -> str:
    lines = ["| latency | | source |", "|---|---:|---|"]
    for workload, name, title in LATENCIES:
        figure = found[workload, name]
        lines.append(f"| {title} | {charts.number(figure.value)} ms | {_link(figure)} |")
    return "\n".join(lines) + "\n"


def held(found: dict[tuple[str, str], Figure]) -> str:
    names = [_OURS, "SKIP LOCKED table"]
    lines = ["| beside a transaction that is open for ten minutes | Trunkline | `SKIP LOCKED` table |", "|---|---:|---:|"]
    for key, title in HELD:
        values = [found["held_xmin", f"{name}, {key}"] for name in names]
        lines.append(f"| consumed {title} | " + " | ".join(f"{charts.number(each.value)} msg/s" for each in values) + " |")
    for key, title in HELD[:2]:
        values = [found["held_xmin", f"{name}, claim {key}"] for name in names]
        lines.append(f"| claim p99 {title} | " + " | ".join(f"{charts.number(each.value)} ms" for each in values) + " |")
    values = [found["held_xmin", f"{name}, dead rows held"] for name in names]
    lines.append("| dead rows | " + " | ".join(charts.number(each.value) for each in values) + " |")
    return "\n".join(lines) + f"\n\nSource: {_link(values[0])}.\n"


def chart(found: dict[tuple[str, str], Figure]) -> str:
    """A bar for each comparison on a logarithmic scale: left of 1 we lose."""
    rows = ratios(found)
    left, width, top, step = 360, 330, 44, 30
    exponents = [math.log2(ratio) for *_, ratio in rows]
    low, high = math.floor(min(exponents)), math.ceil(max(exponents))

    def x(ratio: float) -> float:
        return left + width * (math.log2(ratio) - low) / (high - low)

    bottom = top + step * len(rows)
    parts = [draw.text(0, 20, "Trunkline's figure divided by the other's (logarithmic)", anchor="start", bold=True)]
    for exponent in range(low, high + 1, 2 if high - low > 6 else 1):
        at = x(2.0**exponent)
        parts.append(f'<path d="M{at:.1f} {top - 8} V{bottom}" stroke="{draw.LINE}" stroke-width="1"/>')
        label = f"{2**exponent}" if exponent >= 0 else f"1/{2**-exponent}"
        parts.append(draw.text(at, bottom + 20, label, fill=draw.SOFT, size=14))
    parts.append(f'<path d="M{x(1):.1f} {top - 8} V{bottom}" stroke="{draw.TEXT}" stroke-width="1.5"/>')
    for n, (each, _, _, ratio) in enumerate(rows):
        y = top + step * n
        wins = ratio >= 1
        start, end = sorted((x(1), x(ratio)))
        label = f"{each.title} / {each.shown.replace('`', '')}"
        parts.append(draw.text(350, y + 16, label, anchor="end", size=13))
        parts.append(
            f'<rect x="{start:.1f}" y="{y + 2}" width="{max(end - start, 1.5):.1f}" height="20"'
            f' fill="{draw.GREEN if wins else draw.ARROW}"/>'
        )
        parts.append(draw.text(max(end, x(1)) + 6, y + 17, f"{ratio:.2f}", anchor="start", size=13))
    said = "; ".join(f"{each.title} compared with {each.shown.replace('`', '')}: {ratio:.2f}" for each, _, _, ratio in rows)
    return draw.svg("Ratios of throughput", f"{said}.", bottom + 32, parts)


def files() -> dict[Path, str]:
    """Return each file that this tool writes, with its content."""
    found = figures()
    text = PAGE.read_text()
    for name, write in (("ratios", table), ("latencies", latencies), ("held", held)):
        begin, end = _BEGIN.format(name), _END.format(name)
        before, rest = text.split(begin)
        text = f"{before}{begin}\n{write(found)}\n{end}{rest.split(end, 1)[1]}"
    light = chart(found)
    return {
        PAGE: text,
        draw.ASSETS / "ratios-light.svg": light,
        draw.ASSETS / "ratios-dark.svg": draw.darken(light),
    }


def main(arguments: list[str]) -> int:
    stale = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"out of date: {path.relative_to(ROOT)}; run python {sys.argv[0]}", file=sys.stderr)
        else:
            path.write_text(text)
    return min(len(stale), 1) if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
