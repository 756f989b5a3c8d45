"""Figures of the README: `python -m bench.charts` writes its charts and table from the kept results, `--check` compares.

Each figure comes from the newest kept run that measured it, so that a new file in bench/results replaces the older one.
The drawing in docs/assets/overview-light.svg is made by hand; its dark variant is written here too.
"""

from __future__ import annotations

import re
import sys
import textwrap
from collections.abc import Iterable, Sequence
from datetime import date
from html import escape
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from bench.report import RESULTS

ROOT = Path(__file__).parent.parent
ASSETS = ROOT / "docs" / "assets"
README = ROOT / "README.md"
BEGIN, END = "<!-- begin: written by python -m bench.charts -->", "<!-- end -->"
# Claims draw positions since ADR 19. Figures of earlier runs that contain claims are marked.
CLAIMS_CHANGED = "2026-11-17"

_PAYLOAD = 300
_WIDTH = 680
_FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
# Light colours, and what replaces them on a dark page.
DARK = {
    "#1f2328": "#e6edf3",  # text
    "#59636e": "#9198a1",  # secondary text
    "#d0d7de": "#3d444d",  # lines
    "#f6f8fa": "#151b23",  # areas
    "#8c959f": "#656c76",  # other systems
    "#1a7f37": "#3fb950",  # Trunkline
    "#ddf4ff": "#0c2d6b",  # the log
    "#0969da": "#58a6ff",  # its border
}
_TEXT, _SOFT, _LINE, _AREA, _OTHER, _OURS = list(DARK)[:6]


class Run(NamedTuple):
    """A kept document of `python -m bench`."""

    path: Path
    at: str
    machine: dict[str, Any]
    plan: dict[str, Any]
    rows: list[dict[str, Any]]


class Figures(NamedTuple):
    """Rows of one workload in one run, by contestant. The first one is Trunkline's."""

    run: Run
    rows: dict[str, dict[str, Any]]
    claims: bool

    def value(self, name: str) -> float:
        return float(self.rows[name]["value"])

    @property
    def mark(self) -> str:
        return "†" if self.claims and self.run.at < CLAIMS_CHANGED else ""


class Chart(NamedTuple):
    """An SVG file with its description, which is also the alternative text in the README."""

    name: str
    description: str
    svg: str


def kept_runs(folder: Path = RESULTS) -> list[Run]:
    """Return the kept runs, newest first. Runs with an artificially slow disk are left out."""
    documents = [(path, msgspec.json.decode(path.read_bytes())) for path in folder.glob("*.json")]
    runs = [
        Run(path, each["at"], each["machine"], each["plan"], each["rows"])
        for path, each in documents
        if "plan" in each and each["machine"]["postgres"].get("commit_delay", "0") == "0"
    ]
    return sorted(runs, key=lambda run: run.at, reverse=True)


def pick(runs: Iterable[Run], workload: str, *names: str, claims: bool, **least: float) -> Figures:
    """Return the figures of the newest run that has these rows and measured for at least as long."""
    for run in runs:
        rows = {
            _without_version(row["name"]): row
            for row in run.rows
            if row["workload"] == workload and row["payload"] in (0, _PAYLOAD)
        }
        if rows and set(names) <= set(rows) and all(run.plan.get(key, 0) >= value for key, value in least.items()):
            return Figures(run, rows, claims)
    raise SystemExit(f"no kept run has {workload}: {', '.join(names) or 'any row'} with at least {least}")


def _without_version(name: str) -> str:
    return re.sub(r" \d+(\.\d+)+$", "", name)


def number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


# --- SVG


def _label(x: float, y: float, content: str, *, fill: str = _TEXT, anchor: str = "start", bold: bool = False) -> str:
    weight = ' font-weight="600"' if bold else ""
    return f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}"{weight}>{escape(content)}</text>'


def _bar(x: float, y: float, width: float, height: float, fill: str) -> str:
    return f'<rect x="{x:g}" y="{y:g}" width="{width:.1f}" height="{height:g}" fill="{fill}"/>'


def _stroke(points: str, colour: str, width: float) -> str:
    return f'<path d="{points}" fill="none" stroke="{colour}" stroke-width="{width:g}" stroke-linejoin="round"/>'


def _svg(name: str, title: str, description: str, height: float, parts: Sequence[str]) -> str:
    return (
        "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}"'
                f' height="{height:g}" role="img" aria-labelledby="{name}-title {name}-desc"'
                f' font-family="{_FONT}" font-size="20">',
                f'<title id="{name}-title">{escape(title)}</title>',
                f'<desc id="{name}-desc">{escape(description)}</desc>',
                *parts,
                "</svg>",
            ]
        )
        + "\n"
    )


def darken(light: str) -> str:
    """Replace every colour of a light drawing. A colour without a dark one is an error."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: DARK[match[0]], light)


# --- charts


_OURS_NAME, _THEIRS_NAME = "trunkline", "SKIP LOCKED table"


def held_chart(held: Figures) -> Chart:
    """Draw the rate of consumers before, while and after an unrelated transaction stays open."""
    minutes = held.run.plan["minutes"]
    around = min(minutes / 5, 2)
    left, right, top, bottom, ceiling = 72, _WIDTH - 12, 56, 276, 2_400
    per_minute = (right - left) / (minutes + 2 * around)
    edges = [left, left + around * per_minute, right - around * per_minute, right]
    rate = {
        (name, phase): held.value(f"{name}, {phase}")
        for name in (_OURS_NAME, _THEIRS_NAME)
        for phase in ("before", "held", "after")
    }

    def height(value: float) -> float:
        return bottom - (bottom - top) * min(value, ceiling) / ceiling

    def line(name: str, colour: str, width: float) -> str:
        heights = [height(rate[name, phase]) for phase in ("before", "held", "after")]
        steps = " ".join(f"L{edges[n]:.1f} {y:.1f} L{edges[n + 1]:.1f} {y:.1f}" for n, y in enumerate(heights))
        return _stroke("M" + steps[1:], colour, width)

    parts = [_label(0, 24, f"Consumed messages/s beside a transaction open for {minutes:g} minutes", bold=True)]
    parts.append(_bar(edges[1], top, edges[2] - edges[1], bottom - top, _AREA))
    for tick in (0, 1_000, 2_000):
        parts.append(_stroke(f"M{left} {height(tick):.1f} H{right}", _LINE, 1))
        parts.append(_label(left - 10, height(tick) + 7, f"{tick:,}", fill=_SOFT, anchor="end"))
    labels = ("before", f"transaction open, {minutes:g} min", "after")
    for index, label in enumerate(labels):
        parts.append(_label((edges[index] + edges[index + 1]) / 2, bottom + 28, label, fill=_SOFT, anchor="middle"))
    parts += [line(_THEIRS_NAME, _OTHER, 4), line(_OURS_NAME, _OURS, 4)]
    middle = (edges[1] + edges[2]) / 2
    ours, theirs = rate[_OURS_NAME, "held"], rate[_THEIRS_NAME, "held"]
    parts.append(_label(middle, height(ours) - 12, f"Trunkline: {number(ours)}", fill=_OURS, anchor="middle", bold=True))
    below = height(theirs) + 28
    parts.append(
        _label(
            middle,
            below if below < bottom else height(theirs) - 12,
            f"{_THEIRS_NAME}: {number(theirs)}",
            anchor="middle",
            bold=True,
        )
    )
    after = rate[_THEIRS_NAME, "after"]
    if after > ceiling:
        parts.append(_stroke(f"M{edges[2] - 8:.1f} {top + 11} l8 -11 l8 11", _OTHER, 4))
        parts.append(_label(right, top + 25, number(after), anchor="end"))
    table_top = bottom + 76
    columns = (right - 212, right)
    parts += [
        _label(columns[0], table_top, "Trunkline", fill=_OURS, anchor="end", bold=True),
        _label(columns[1], table_top, _THEIRS_NAME, anchor="end", bold=True),
        _label(0, table_top + 32, "claim p99, before → open"),
        _label(0, table_top + 64, "dead rows"),
    ]
    for name, column in zip((_OURS_NAME, _THEIRS_NAME), columns, strict=True):
        before, during = (number(held.value(f"{name}, claim {phase}")) for phase in ("before", "held"))
        parts.append(_label(column, table_top + 32, f"{before} → {during} ms", anchor="end"))
        parts.append(_label(column, table_top + 64, number(held.value(f"{name}, dead rows held")), anchor="end"))
    description = (
        f"Consumed messages per second before, during and after {minutes:g} minutes in which an unrelated transaction "
        f"stays open: Trunkline {_list(number(rate[_OURS_NAME, phase]) for phase in ('before', 'held', 'after'))}, "
        f"a SKIP LOCKED table {_list(number(rate[_THEIRS_NAME, phase]) for phase in ('before', 'held', 'after'))}. "
        f"Dead rows: {number(held.value(f'{_OURS_NAME}, dead rows held'))} and "
        f"{number(held.value(f'{_THEIRS_NAME}, dead rows held'))}."
    )
    title = "Consumers beside an open transaction"
    return Chart("held-xmin", description, _svg("held", title, description, table_top + 76, parts))


def _list(values: Iterable[str]) -> str:
    *first, last = values
    return f"{', '.join(first)} and {last}"


def throughput_chart(jobs: Figures, batch: Figures, single: Figures) -> Chart:
    """Draw three groups of bars, each with its own scale."""
    groups = [
        ("No-op jobs per second, one worker", [("Trunkline", jobs.value("trunkline jobs")), *others(jobs)]),
        ("Claim and ack, 100 messages at a time, messages/s", _pair(batch)),
        ("Claim and ack, one message at a time, messages/s", _pair(single)),
    ]
    parts: list[str] = []
    y = 0.0
    for title, bars in groups:
        parts.append(_label(0, y + 24, title, bold=True))
        y += 40
        longest = max(value for _, value in bars)
        for name, value in bars:
            ours = name == "Trunkline"
            width = max(2.0, 380 * value / longest)
            parts.append(_label(184, y + 20, name, anchor="end", fill=_OURS if ours else _TEXT, bold=ours))
            parts.append(_bar(196, y, width, 26, _OURS if ours else _OTHER))
            parts.append(_label(204 + width, y + 20, number(value)))
            y += 34
        y += 16
    said = [f"{title}: {_list(f'{name} {number(value)}' for name, value in bars)}." for title, bars in groups]
    description = " ".join(said)
    title = "Jobs, and claims in batches and one by one"
    return Chart("throughput", description, _svg("throughput", title, description, y - 12, parts))


def others(figures: Figures) -> list[tuple[str, float]]:
    """Return the other contestants, fastest first."""
    named = [(name, figures.value(name)) for name in figures.rows if not name.startswith("trunkline")]
    return sorted(named, key=lambda each: each[1], reverse=True)


def _pair(figures: Figures) -> list[tuple[str, float]]:
    return [("Trunkline", figures.value(_OURS_NAME)), (_THEIRS_NAME, figures.value(_THEIRS_NAME))]


# --- the README


def content(runs: Sequence[Run]) -> tuple[list[Chart], str]:
    """Return the charts and the text of the README between the two marks."""
    jobs = pick(runs, "jobs, run", "trunkline jobs", "Procrastinate", claims=True, seconds=2)
    batch = pick(runs, "claim_ack_batch", _OURS_NAME, _THEIRS_NAME, claims=True, seconds=2)
    single = pick(runs, "claim_ack_single", _OURS_NAME, _THEIRS_NAME, claims=True, seconds=2)
    publish = pick(runs, "publish_single", _OURS_NAME, "plain INSERT", claims=False, seconds=2)
    http = pick(runs, "http, publish one", _OURS_NAME, "GET that does nothing", claims=False, seconds=2)
    wakeup = pick(runs, "wakeup, idle", "queue, p50", "queue, p99", claims=True, samples=200)
    held = pick(runs, "held_xmin", f"{_OURS_NAME}, held", f"{_THEIRS_NAME}, held", claims=True, minutes=10)
    charts = [held_chart(held), throughput_chart(jobs, batch, single)]
    used = [jobs, batch, single, publish, http, wakeup, held]
    minutes = held.run.plan["minutes"]
    theirs = f"{_THEIRS_NAME}, held"
    compared = ", ".join(f"{name} {number(value)}" for name, value in others(jobs))
    rows = [
        _row("no-op jobs, one worker", jobs, f"{number(jobs.value('trunkline jobs'))} jobs/s", compared, others(jobs)[0][0]),
        _compared("claim and ack, 100 at a time", batch, "msg/s", _THEIRS_NAME, "SKIP LOCKED table"),
        _compared("claim and ack, one at a time", single, "msg/s", _THEIRS_NAME, "SKIP LOCKED table"),
        _compared("publish, one at a time", publish, "msg/s", "plain INSERT", "plain `INSERT`"),
        _compared("publish over HTTP, one at a time", http, "req/s", "GET that does nothing", "empty `GET`"),
        _row(
            "publish to an idle consumer",
            wakeup,
            f"p50 {number(wakeup.value('queue, p50'))} ms, p99 {number(wakeup.value('queue, p99'))} ms",
        ),
        _row(
            f"2,000 msg/s beside a transaction open for {minutes:g} min",
            held,
            f"{held.rows[f'{_OURS_NAME}, held']['ratio']:.2f} x the rate before",
            f"SKIP LOCKED table {held.rows[theirs]['ratio']:.2f} x",
        ),
    ]
    notes = [_conditions(used)]
    if any(each.mark for each in used):
        notes.append(
            "† The claim functions have changed since this run ([ADR 19](docs/adr/0019-claims-draw-positions.md));"
            " its figures describe the earlier ones."
        )
    many, one = (each.rows[_THEIRS_NAME]["ratio"] for each in (batch, single))
    lines = [
        *_wrapped(
            f"Claim and ack run at {many:.2f} x{batch.mark} the rate of a `SKIP LOCKED` table in batches of 100,"
            f" and at {one:.2f} x{single.mark} one message at a time."
            " [Method](bench/README.md) and [all results](bench/results/README.md)."
        ),
        "",
        *_picture(charts[0]),
        "",
        *_picture(charts[1]),
        "",
        "| workload | Trunkline | compared with | ratio | run |",
        "|---|---|---|---|---|",
        *rows,
        "",
        *_wrapped(" ".join(notes)),
    ]
    return charts, "\n".join(lines) + "\n"


def _row(workload: str, figures: Figures, ours: str, compared: str = "", with_ratio_to: str = "") -> str:
    ratio = f"{figures.rows[with_ratio_to]['ratio']:.2f}" if with_ratio_to else ""
    name = re.sub(r"^[\d-]+", "", figures.run.path.stem)
    source = f"[{name}](bench/results/{figures.run.path.name}){figures.mark}"
    return f"| {workload} | {ours} | {compared} | {ratio} | {source} |".replace("  ", " ")


def _compared(workload: str, figures: Figures, unit: str, other: str, shown: str) -> str:
    ours = f"{number(figures.value(_OURS_NAME))} {unit}"
    return _row(workload, figures, ours, f"{shown} {number(figures.value(other))}", other)


def _conditions(used: Sequence[Figures]) -> str:
    machines = {
        (each.run.machine["cores"], each.run.machine["postgres"]["server_version"], each.run.machine["postgres"]["fsync"])
        for each in used
    }
    days = sorted({date.fromisoformat(each.run.at[:10]) for each in used})
    spans = " to ".join(f"{day.day} {day:%B %Y}" for day in sorted({days[0], days[-1]}))
    on = "; ".join(
        f"{cores} shared cores, Postgres {version}, `fsync` {fsync}, {_PAYLOAD}-byte messages"
        for cores, version, fsync in sorted(machines)
    )
    return f"{on}; {spans}."


def _wrapped(words: str) -> list[str]:
    return textwrap.wrap(words, 110, break_long_words=False, break_on_hyphens=False)


def _picture(chart: Chart) -> list[str]:
    return [
        "<picture>",
        f'  <source media="(prefers-color-scheme: dark)" srcset="docs/assets/{chart.name}-dark.svg">',
        f'  <img alt="{escape(chart.description)}" src="docs/assets/{chart.name}-light.svg" width="{_WIDTH}">',
        "</picture>",
    ]


def files(runs: Sequence[Run]) -> dict[Path, str]:
    """Return every file that this module writes, with its content."""
    charts, section = content(runs)
    written = {}
    for chart in charts:
        written[ASSETS / f"{chart.name}-light.svg"] = chart.svg
        written[ASSETS / f"{chart.name}-dark.svg"] = darken(chart.svg)
    written[ASSETS / "overview-dark.svg"] = darken((ASSETS / "overview-light.svg").read_text())
    before, rest = README.read_text().split(BEGIN)
    written[README] = f"{before}{BEGIN}\n{section}{END}{rest.split(END, 1)[1]}"
    return written


def main(arguments: Sequence[str]) -> int:
    stale = {path: text for path, text in files(kept_runs()).items() if not path.exists() or path.read_text() != text}
    for path, text in stale.items():
        if "--check" in arguments:
            print(f"{path.relative_to(ROOT)} is out of date: run python -m bench.charts", file=sys.stderr)
        else:
            path.write_text(text)
    return min(len(stale), 1) if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
