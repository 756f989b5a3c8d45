"""Draw the diagrams of docs/explanation/architecture.md as SVG, each for light and dark pages: `python
tools/docs_diagrams.py`, or `--check`.

Each diagram is a list of boxes and arrows with coordinates. `docs/assets/<name>-dark.svg` has the same shapes in other
colours.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from html import escape
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import charts

ASSETS = charts.ROOT / "docs" / "assets"
_WIDTH = 760
_FONT = "-apple-system, 'Segoe UI', 'Noto Sans', Helvetica, Arial, sans-serif"
# A light colour and its dark counterpart.
TEXT, SOFT, LINE, AREA, ARROW, GREEN, LOG, LOG_LINE = charts.DARK
BOX, GREEN_AREA = "#ffffff", "#dafbe1"
DARK = {**charts.DARK, BOX: "#0d1117", GREEN_AREA: "#12261e"}


def text(
    x: float, y: float, content: str, *, fill: str = TEXT, anchor: str = "middle", bold: bool = False, size: int = 15
) -> str:
    weight = ' font-weight="600"' if bold else ""
    return (
        f'<text x="{x:g}" y="{y:g}" fill="{fill}" text-anchor="{anchor}" font-size="{size}"{weight}>{escape(content)}</text>'
    )


def rect(x: float, y: float, width: float, height: float, *, fill: str = BOX, line: str = LINE, dashed: bool = False) -> str:
    dash = ' stroke-dasharray="5 4"' if dashed else ""
    return (
        f'<rect x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6" fill="{fill}" stroke="{line}"'
        f' stroke-width="1.5"{dash}/>'
    )


def box(
    x: float, y: float, width: float, height: float, *lines: str, fill: str = BOX, line: str = LINE, dashed: bool = False
) -> str:
    """A rectangle with centred lines of text, the first one bold."""
    top = y + height / 2 + 5 - 10 * (len(lines) - 1)
    words = [
        text(x + width / 2, top + 20 * n, each, bold=n == 0, fill=TEXT if n == 0 else SOFT, size=15 if n == 0 else 14)
        for n, each in enumerate(lines)
    ]
    return rect(x, y, width, height, fill=fill, line=line, dashed=dashed) + "".join(words)


def arrow(
    points: str, *, label: str = "", at: tuple[float, float] = (0, 0), anchor: str = "middle", colour: str = ARROW
) -> str:
    """A line along `points` with a head at its end. The label is at `at`."""
    head = "accent" if colour == GREEN else "plain"
    line = f'<path d="M{points}" fill="none" stroke="{colour}" stroke-width="1.5" marker-end="url(#{head})"/>'
    return line + (text(*at, label, fill=SOFT, anchor=anchor, size=14) if label else "")


def svg(title: str, description: str, height: float, parts: Sequence[str]) -> str:
    heads = "".join(
        f'<marker id="{name}" viewBox="0 0 10 10" refX="9" refY="5" markerWidth="8" markerHeight="8" orient="auto">'
        f'<path d="M0 1 L9 5 L0 9 z" fill="{colour}"/></marker>'
        for name, colour in (("plain", ARROW), ("accent", GREEN))
    )
    lines = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height:g}" width="{_WIDTH}" height="{height:g}"'
        f' role="img" aria-labelledby="title desc" font-family="{_FONT}">',
        f'<title id="title">{escape(title)}</title>',
        f'<desc id="desc">{escape(description)}</desc>',
        f"<defs>{heads}</defs>",
        *parts,
        "</svg>",
    ]
    return "\n".join(lines) + "\n"


def darken(light: str) -> str:
    """Replace every colour. A colour without a dark one is an error."""
    return re.sub(r"#[0-9a-f]{6}\b", lambda match: DARK[match[0]], light)


# --- the diagrams


def layers() -> str:
    """Programs on top, the kernel below. Every path ends in a SQL function."""
    parts = [
        box(10, 10, 130, 50, "psql", "any driver"),
        # psql needs none of the Python layers
        arrow("60 60 V79 H5 V340 H12", colour=GREEN),
        box(160, 10, 270, 50, "Python programs", "trunkline.Client, jobs"),
        box(450, 10, 140, 50, "HTTP clients"),
        box(610, 10, 140, 50, "Spark"),
        arrow("230 60 V96"),
        arrow("380 60 V156"),
        arrow("520 60 V96"),
        arrow("680 60 V96"),
        box(160, 98, 140, 40, "jobs"),
        box(450, 98, 140, 40, "server"),
        box(610, 98, 140, 40, "spark"),
        box(315, 98, 50, 40, "push"),
        box(20, 98, 120, 40, "upkeep"),
        arrow("230 138 V156"),
        arrow("340 138 V156"),
        arrow("520 138 V156"),
        box(160, 158, 430, 40, "client: async, and generated sync"),
        arrow("375 198 V216"),
        arrow("680 138 V216"),
        arrow("80 138 V216"),
        box(20, 218, 730, 44, "db: pool, and one typed call per SQL function", fill=AREA),
        arrow("375 262 V292"),
        rect(14, 294, 736, 92, fill=LOG, line=LOG_LINE),
        text(380, 322, "sql: schema trunkline", bold=True),
        text(380, 346, "create, publish, sequence, claim, settle, redrive, statistics, upkeep", fill=SOFT, size=14),
        text(380, 370, "every state change is a function; nothing here needs Python", fill=SOFT, size=14),
    ]
    return svg(
        "Layers of Trunkline",
        "psql calls the SQL functions directly. Python programs use the client, HTTP clients the server, Spark its "
        "connector. All of them call typed functions in db, and these call the SQL functions of schema trunkline.",
        396,
        parts,
    )


def sequencing() -> str:
    """Ids in insert order, transactions that end in another order, offsets from two scans."""
    cell, left = 62, 150
    owners = ["A", "A", "B", "B", "C", "D", "B", "E"]
    fills = {"A": GREEN_AREA, "C": GREEN_AREA, "B": LOG, "E": LOG, "D": AREA}
    lines = {"A": GREEN, "C": GREEN, "B": LOG_LINE, "E": LOG_LINE, "D": LINE}
    parts = [
        text(10, 40, "rows by id", anchor="start", bold=True),
        text(10, 60, "(insert order)", anchor="start", fill=SOFT, size=14),
    ]
    for n, owner in enumerate(owners):
        x = left + n * (cell + 10)
        parts.append(
            box(x, 20, cell, 48, f"id {n + 1}", f"tx {owner}", fill=fills[owner], line=lines[owner], dashed=owner == "D")
        )
    parts += [
        text(left + 5 * 72 + 31, 88, "rolled back", fill=SOFT, size=14),
        text(10, 128, "scan 1", anchor="start", bold=True),
        text(150, 128, "A and C have committed; B is open: ids 1, 2, 5 get the offsets 1, 2, 3", anchor="start"),
        text(10, 158, "scan 2", anchor="start", bold=True),
        text(150, 158, "B and E have committed since: ids 3, 4, 7, 8 get the offsets 4, 5, 6, 7", anchor="start"),
        text(10, 214, "the log", anchor="start", bold=True),
        text(10, 234, "(offset order)", anchor="start", fill=SOFT, size=14),
    ]
    for n, (number, owner) in enumerate([(1, "A"), (2, "A"), (5, "C"), (3, "B"), (4, "B"), (7, "B"), (8, "E")]):
        x = left + n * (cell + 10)
        parts.append(box(x, 194, cell, 48, str(n + 1), f"id {number}", fill=fills[owner], line=lines[owner]))
    parts += [
        rect(left, 262, 3 * 72 - 10, 34, fill=BOX, line=GREEN),
        text(left + 103, 284, "tick 1: ids 1, 2, 5", size=14),
        rect(left + 3 * 72, 262, 4 * 72 - 10, 34, fill=BOX, line=LOG_LINE),
        text(left + 3 * 72 + 139, 284, "tick 2: ids 3, 4, 7, 8", size=14),
    ]
    return svg(
        "Sequencing",
        "Eight rows were inserted by five transactions. The first scan gives the offsets 1 to 3 to the rows of committed "
        "transactions. The second gives the offsets 4 to 7 to rows that were committed since. A row that was rolled back "
        "gets none. Each scan is one tick row.",
        310,
        parts,
    )


def message_states() -> str:
    """The states of a message in a queue, as `explain_message` and `queue_stats` name them."""
    parts = [
        box(10, 60, 130, 56, "delayed", "not due yet", fill=AREA),
        box(250, 60, 130, 56, "ready", "can be claimed", fill=LOG, line=LOG_LINE),
        box(490, 60, 130, 56, "leased", "one consumer", fill=LOG, line=LOG_LINE),
        box(580, 200, 130, 56, "acked", fill=GREEN_AREA, line=GREEN),
        box(250, 200, 130, 56, "dead", "dead letter", fill=AREA),
        box(10, 200, 130, 56, "expired, purged", fill=AREA),
        arrow("75 20 V58", label="publish with a delay", at=(84, 30), anchor="start"),
        arrow("315 20 V58", label="publish, enqueue", at=(324, 30), anchor="start"),
        arrow("140 80 H248", label="due", at=(194, 74)),
        arrow("380 78 H488", label="claim", at=(434, 70)),
        arrow("490 98 H382", label="returns", at=(436, 114)),
        arrow("604 116 V198", label="ack", at=(614, 172), anchor="start", colour=GREEN),
        arrow("520 116 V228 H384", label="last attempt failed, or bury", at=(512, 166), anchor="end"),
        arrow("290 198 V118", label="redrive", at=(296, 188), anchor="start"),
        arrow("262 116 L146 198", label="ttl, purge", at=(170, 160), anchor="end"),
        text(640, 78, "returns: nack,", anchor="start", fill=SOFT, size=14),
        text(640, 96, "release, expired", anchor="start", fill=SOFT, size=14),
        text(640, 114, "lease, hole", anchor="start", fill=SOFT, size=14),
    ]
    return svg(
        "States of a message in a queue",
        "A message is ready at once or after a delay. A claim leases it. An ack ends it. A nack, a release or an expired "
        "lease returns it. After its last attempt, or when it is buried, it is a dead letter, which a redrive returns. "
        "Messages that were not delivered in time expire, and a purge removes them.",
        270,
        parts,
    )


def storage() -> str:
    """Tables that are appended to, and emptied as a whole."""
    parts: list[str] = []

    def row(y: float, title: str, note: str, cells: Sequence[tuple[str, str, str, bool]], caption: str) -> None:
        parts.append(text(10, y + 20, title, anchor="start", bold=True))
        parts.append(text(10, y + 40, note, anchor="start", fill=SOFT, size=14))
        width = (550 - 8 * (len(cells) - 1)) / len(cells)
        for n, (label, fill, line, dashed) in enumerate(cells):
            parts.append(rect(200 + n * (width + 8), y, width, 46, fill=fill, line=line, dashed=dashed))
            parts.append(text(200 + n * (width + 8) + width / 2, y + 28, label, size=14))
        parts.append(text(200, y + 66, caption, anchor="start", fill=SOFT, size=14))

    old, now, new = (AREA, LINE, True), (LOG, LOG_LINE, False), (BOX, LINE, False)
    row(
        10,
        "topic",
        "its own tables",
        [
            ("archived", *old),
            ("removed next", AREA, LINE, False),
            ("sealed", *now),
            ("current", GREEN_AREA, GREEN, False),
            ("next", *new),
        ],
        "segments of a fixed number of ids: truncated and dropped as a whole",
    )
    row(
        104,
        "queues",
        "one shared store",
        [*[(str(n), *now) for n in (5, 6, 7)], ("8", GREEN_AREA, GREEN, False), *[(str(n), *new) for n in (1, 2, 3, 4)]],
        "a ring of eight tables: unsettled messages are copied out, then the table is truncated",
    )
    row(
        198,
        "deliveries",
        "leases, returns, ...",
        [("oldest, emptied next", *old), ("previous", *now), ("current", GREEN_AREA, GREEN, False)],
        "three partitions: rows still needed are copied out of the oldest, then it is truncated",
    )
    return svg(
        "Storage",
        "Topics have segments. Queues share a ring of eight tables. Leases, settlements and returns are in three "
        "partitions. In each of them new rows are appended to the current table, and old tables are truncated as a whole.",
        276,
        parts,
    )


def processes() -> str:
    """Which programs talk to the database, and which of them may run several times."""
    parts = [
        rect(10, 10, 300, 250, fill=AREA),
        text(160, 34, "your processes", bold=True),
        box(30, 50, 260, 50, "application", "publishes in its own transactions"),
        box(30, 112, 260, 50, "consumers", "claims(), subscribe(), fetch"),
        box(30, 174, 260, 66, "trunkline worker run", "jobs; any number of processes"),
        rect(10, 275, 300, 190, fill=AREA),
        text(160, 299, "service processes", bold=True),
        box(30, 312, 260, 66, "trunkline up, trunkline serve", "HTTP, and upkeep in one of them"),
        box(30, 390, 260, 60, "trunkline dispatch", "webhooks; several share the limits"),
        rect(510, 10, 240, 455, fill=LOG, line=LOG_LINE),
        text(630, 40, "Postgres 15 to 18", bold=True),
        box(525, 60, 210, 90, "schema trunkline", "messages, positions,", "leases, locks, clock"),
        box(525, 165, 210, 60, "your tables", "in the same transaction"),
        box(525, 320, 210, 60, "standby, backup", "the same as for your tables"),
        arrow("290 75 H508", label="publish", at=(410, 66)),
        arrow("290 137 H508", label="claim, settle, poll", at=(410, 128)),
        arrow("290 207 H508", label="prefetch, heartbeat", at=(410, 198)),
        arrow("290 345 H508", label="upkeep, passes", at=(410, 336)),
        arrow("290 420 H508", label="permits, attempts", at=(410, 411)),
        arrow("510 268 H314", label="NOTIFY (only a hint)", at=(410, 260), colour=GREEN),
    ]
    return svg(
        "Processes",
        "Applications, consumers, workers, the HTTP service and dispatchers all connect to one Postgres, which has the "
        "messages and the tables of the application. Postgres notifies waiting consumers.",
        475,
        parts,
    )


DIAGRAMS = {
    "layers": layers,
    "sequencing": sequencing,
    "message-states": message_states,
    "storage": storage,
    "processes": processes,
}


def main(arguments: list[str]) -> int:
    stale = 0
    for name, draw in DIAGRAMS.items():
        light = draw()
        for path, content in ((ASSETS / f"{name}-light.svg", light), (ASSETS / f"{name}-dark.svg", darken(light))):
            if path.exists() and path.read_text() == content:
                continue
            stale += 1
            if "--check" in arguments:
                print(f"out of date: {path.relative_to(Path.cwd())}; run python {sys.argv[0]}", file=sys.stderr)
            else:
                path.write_text(content)
    return min(stale, 1) if "--check" in arguments else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
