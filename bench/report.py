"""Output of a run: a table and a JSON document."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec

from bench.machine import host_kind
from bench.plan import Plan
from bench.rows import Row

RESULTS = Path(__file__).parent / "results"
_HEADERS = ("workload", "payload", "who", "median", "unit", "ratio", "goal", "verdict", "note")


def document(plan: Plan, machine: dict[str, Any], rows: Sequence[Row]) -> dict[str, Any]:
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "machine": machine,
        "plan": msgspec.to_builtins(plan),
        "rows": [{**msgspec.to_builtins(row), "verdict": row.verdict} for row in rows],
    }


def default_file(plan: Plan) -> Path:
    kind = host_kind() + ("-quick" if plan.quick else "")
    return RESULTS / f"{datetime.now(UTC).date().isoformat()}-{kind}.json"


def save(content: dict[str, Any], path: Path) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(msgspec.json.format(msgspec.json.encode(content), indent=2) + b"\n")


def print_table(machine: dict[str, Any], rows: Sequence[Row]) -> None:
    """Print a formatted table on a terminal, aligned columns elsewhere."""
    cells = [_cells(row) for row in rows]
    if sys.stdout.isatty():
        _print_rich(cells)
    else:
        _print_plain(cells)
    judged = [row for row in rows if row.goal]
    passed = sum(row.verdict == "PASS" for row in judged)
    print(f"\n{passed} of {len(judged)} goals passed. Ratio: trunkline divided by the row, the median over rounds.")
    print(
        f"{machine['cores']} cores, {machine['memory_gb']} GB, Postgres {machine['postgres']['server_version']},"
        f" flush {machine['fsync_ms']} ms, {machine['commits_per_s']:,.0f} commits/s from one connection,"
        f" load {machine['load_average']:.1f} at the start"
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.workload,
        f"{row.payload} B" if row.payload else "",
        row.name,
        f"{row.value:,.0f}" if row.value >= 100 or row.value == int(row.value) else f"{row.value:,.2f}",
        row.unit,
        "" if row.ratio is None else f"{row.ratio:.2f}",
        "" if row.goal is None else str(row.goal),
        row.verdict,
        row.note,
    )


def _print_rich(cells: Sequence[tuple[str, ...]]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for header in _HEADERS:
        table.add_column(header, justify="right" if header in ("median", "ratio", "payload") else "left")
    last: tuple[str, ...] = ()
    for row in cells:
        if last and row[:2] != last:
            table.add_row()
        last = row[:2]
        style = {"PASS": "green", "": ""}.get(row[7], "red")
        table.add_row(*(Text(cell, style=style if index == 7 else "") for index, cell in enumerate(row)))
    Console().print(table)


def _print_plain(cells: Sequence[tuple[str, ...]]) -> None:
    lines = [_HEADERS, *cells]
    widths = [max(len(line[index]) for line in lines) for index in range(len(_HEADERS))]
    for line in lines:
        print(
            "  ".join(
                _pad(cell, width, index) for index, (cell, width) in enumerate(zip(line, widths, strict=True))
            ).rstrip()
        )


def _pad(cell: str, width: int, index: int) -> str:
    return cell.rjust(width) if _HEADERS[index] in ("median", "ratio", "payload") else cell.ljust(width)
