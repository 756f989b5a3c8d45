"""docs/operations/index.md: names of metrics, settings, tasks, alerts and commands are those of the code."""

from __future__ import annotations

import re

import click
import yaml
from prometheus_client.core import Metric

from tests.conftest import Connection
from tests.docs.pages import ROOT, blocks, pages
from trunkline.cli.main import app
from trunkline.settings import VARIABLES, Settings
from trunkline.sql import catalog

PAGE = "docs/operations/index.md"
TEXT = (ROOT / PAGE).read_text()
_METRIC = re.compile(r"\b(?:trunkline_(?!publisher|consumer|reader|owner|superuser)[a-z_]+|http_re[a-z_]+)\b")


def metrics() -> set[str]:
    """Return the names of all metrics of the server, without a database."""
    source = (ROOT / "src" / "trunkline" / "server" / "metrics.py").read_text()
    names = set(re.findall(r'"((?:trunkline|http)_[a-z_]+)"', source))
    counters = set(re.findall(r'Counter\(\s*"([a-z_]+)"', source))
    histograms = set(re.findall(r'Histogram\(\s*"([a-z_]+)"', source))
    assert counters and histograms
    series = {f"{name}_total" for name in counters} | {f"{name}_bucket" for name in histograms}
    return names - counters | series


def test_metrics_exist() -> None:
    named = set(_METRIC.findall(TEXT))
    assert len(named) > 10
    assert named <= metrics()


def test_a_metric_that_does_not_exist_is_noticed() -> None:
    assert _METRIC.findall("`trunkline_made_up` and role `trunkline_owner`") == ["trunkline_made_up"]
    assert "trunkline_made_up" not in metrics()
    assert Metric("trunkline_queue_messages", "", "gauge").name in metrics()


def test_alert_rules_can_be_read() -> None:
    [rules] = [yaml.safe_load(block.text) for block in blocks(PAGE) if block.language == "yaml"]
    for rule in rules["groups"][0]["rules"]:
        assert set(rule) <= {"alert", "expr", "for"}
        assert rule["expr"].count("(") == rule["expr"].count(")")
        assert _METRIC.search(rule["expr"]), rule


def test_settings_of_the_database(conn: Connection) -> None:
    rows = conn.execute("select name from trunkline.settings where name <> 'cluster'").fetchall()
    section = TEXT.partition("| setting | meaning |")[2].partition("\n## ")[0]
    explained = {
        name
        for line in section.splitlines()
        for name in re.findall(r"`([a-z_]+)`", line.split("|")[1:2][0] if "|" in line else "")
    }
    assert explained == {name for (name,) in rows}


def test_variables() -> None:
    assert set(re.findall(r"`(TRUNKLINE_[A-Z_]+)`", TEXT)) == set(VARIABLES)
    interval = Settings().upkeep_interval.total_seconds()
    assert f"| `TRUNKLINE_UPKEEP_INTERVAL` | `--upkeep-interval` | {interval * 1000:.0f}ms |" in TEXT


def test_kinds_of_alerts() -> None:
    source = "".join(file.text for file in catalog.functions())
    raised = set(
        re.findall(r"insert into trunkline\.alerts \(at, kind, detail\)\s+(?:values|select)[^']*'([a-z_]+)'", source)
    )
    section = TEXT.partition("| kind | meaning |")[2].partition("\n## ")[0]
    assert raised == set(re.findall(r"^\| `([a-z_]+)` \|", section, re.MULTILINE))


def test_commands_of_the_pages_exist() -> None:
    """`trunkline queue show` in the text of a page."""
    for page in pages():
        if page.startswith("docs/adr/"):
            continue
        for words in re.findall(r"`trunkline ((?:[a-z][a-z-]* ?)+)", (ROOT / page).read_text()):
            command: click.Command = app
            for word in words.split():
                if not isinstance(command, click.Group):
                    break
                child = command.get_command(click.Context(command), word)
                assert child is not None, f"{page}: trunkline {words}"
                command = child
