"""Numbers, durations, sizes, rates and times as the console writes them; charts as SVG."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree
from zoneinfo import ZoneInfo

import pytest

from trunkline.server.console import charts, ruler, shapes

NOW = datetime(2026, 11, 16, 14, 2, 0, tzinfo=UTC)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0, "0 s"), (0.00004, "1 ms"), (0.08, "80 ms"), (0.9999, "1 s"), (3.1, "3.1 s"), (59.99, "1 m"), (140, "2 m 20 s"),
        (3600, "1 h"), (31 * 3600 + 50 * 60 + 9, "31 h 50 m"), (36 * 3600, "36 h"), (30 * 86400, "30 d"), (-5, "-5 s"),
        (timedelta(minutes=5), "5 m"), (None, "\u2013"),
    ],
)  # fmt: skip
def test_durations(value: float | timedelta | None, text: str) -> None:
    assert shapes.duration(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (12204, "12,204"), (999_999, "999,999"), (1_400_000, "1.40 M"), (1.41e9, "1.41 G")]
)
def test_numbers(value: float, text: str) -> None:
    assert shapes.number(value) == text


@pytest.mark.parametrize(
    ("value", "text"), [(0, "0"), (0.01, "<0.1"), (12.24, "12.2"), (18_400, "18.4 k"), (None, "\u2013")]
)
def test_rates(value: float | None, text: str) -> None:
    assert shapes.rate(value) == text


@pytest.mark.parametrize(("value", "text"), [(412, "412 B"), (18_000_000, "18 MB"), (2_100_000_000, "2.1 GB")])
def test_sizes(value: float, text: str) -> None:
    assert shapes.size(value) == text


def test_times_say_their_zone() -> None:
    berlin = ZoneInfo("Europe/Berlin")
    assert shapes.moment(NOW, UTC, NOW) == "14:02:00 UTC"
    assert shapes.moment(NOW, berlin, NOW) == "15:02:00 CET"
    assert shapes.moment(NOW - timedelta(days=1), UTC, NOW) == "15 Nov 14:02:00 UTC"
    assert shapes.moment(NOW - timedelta(days=365), UTC, NOW) == "16 Nov 2025 14:02:00 UTC"
    assert 'datetime="2026-11-16T14:02:00Z"' in shapes.time_element(NOW, berlin, NOW)


def test_an_unknown_state_is_plain_text() -> None:
    assert shapes.state("quarantined") == ("unknown", "quarantined")
    assert shapes.state("dead") == ("dead", "Dead")


def test_charts_are_well_formed_with_hostile_labels() -> None:
    bad = "<script>\"&'"
    line = charts.Line(label=bad, values=[1, None, float("nan"), 3, 2], now=bad, area=True)
    times = [NOW - timedelta(minutes=20 * n) for n in (4, 3, 2, 1, 0)]
    drawn = charts.chart(
        bad, bad, [line], times, since=NOW - timedelta(hours=2), until=NOW, tick=lambda value: f"{bad}{value}",
        limits=[charts.Limit(at=5, label=bad)], events=[charts.Event(at=NOW - timedelta(hours=1), label=bad)],
    )  # fmt: skip
    ElementTree.fromstring(drawn)
    assert "<script" not in drawn
    ElementTree.fromstring(charts.sparkline([1, 2, None, 4], label=bad))
    ElementTree.fromstring(charts.sparkline([]))
    ElementTree.fromstring(charts.meter([(50, "c-dead")], bad))


def test_the_ruler_orders_positions() -> None:
    lanes = [
        ruler.Lane(name="p0", span=10_000, segments=4),
        ruler.Lane(name="p1", span=8_000, archived=True, archived_to=5_000),
    ]
    scale = ruler.Scale(lanes)
    places = [scale.x(distance) for distance in (20_000, 10_000, 9_000, 500, 100, 1, 0)]
    assert places == sorted(places)
    assert places[-1] > places[-2]
    pins = [
        ruler.Pin(name="<b>", kind="group", at=[3, None], label="3 s"),
        ruler.Pin(name="x", kind="spark", at=[None, None]),
    ]
    drawn = ruler.ruler("<t>", lanes, pins, [ruler.Mark(at=9_000, label="<m>")], tick=shapes.number)
    ElementTree.fromstring(drawn)
    assert "<b>" not in drawn
    ElementTree.fromstring(ruler.ruler("empty", [ruler.Lane(name="p0", span=0)], tick=shapes.number))
