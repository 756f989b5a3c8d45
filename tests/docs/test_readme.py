"""The README: its figures are those of the kept results, its links lead somewhere, its pictures can be read."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from xml.etree import ElementTree

import pytest
from bench import charts

from tests.docs.pages import ROOT, blocks
from trunkline import __version__

README = (ROOT / "README.md").read_text()
_SVG = "{http://www.w3.org/2000/svg}"
PICTURES = sorted((ROOT / "docs" / "assets" / f"{name}-light.svg") for name in ("overview", "held-xmin", "throughput"))


def prose() -> str:
    text = README
    for block in blocks("README.md"):
        text = text.replace(block.text, "")
    return text


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 200
    example = next(block for block in blocks("README.md") if block.language == "python")
    assert len(example.text.splitlines()) <= 12


# Figures


def test_charts_and_table_are_those_of_the_kept_results() -> None:
    for path, text in charts.files(charts.kept_runs()).items():
        assert path.read_text() == text, f"{path.relative_to(ROOT)} is out of date: run python -m bench.charts"


def test_a_stale_chart_is_reported(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    path = ROOT / "docs" / "assets" / "throughput-dark.svg"
    monkeypatch.setattr(charts, "files", lambda runs: {path: path.read_text() + "<!-- changed -->"})
    assert charts.main(["--check"]) == 1
    assert "docs/assets/throughput-dark.svg is out of date" in capsys.readouterr().err


def test_the_newest_long_enough_run_counts() -> None:
    runs = charts.kept_runs()
    held = next(run for run in runs if any(row["workload"] == "held_xmin" for row in run.rows))
    assert held.plan["minutes"] == 10
    rows = [{**row, "value": 1_234.0, "ratio": row.get("ratio")} for row in held.rows]
    short = held._replace(at="2027-01-01T00:00:00+00:00", plan={**held.plan, "minutes": 1}, rows=rows)
    assert charts.content([short, *runs]) == charts.content(runs)
    long = short._replace(plan=held.plan, path=held.path.with_name("2027-01-01-held.json"))
    drawn, section = charts.content([long, *runs])
    assert "1,234" in drawn[0].svg and "1,234" in drawn[0].description
    assert "[held](bench/results/2027-01-01-held.json) |" in section
    assert "1 January 2027" in section


def test_figures_of_earlier_claim_functions_are_marked() -> None:
    runs = charts.kept_runs()
    section = charts.content(runs)[1]
    marked = [line for line in section.splitlines() if line.startswith("| ") and "†" in line]
    assert all(re.search(r"2026-11-16-[\w-]+\.json\)†", line) for line in marked)
    later = charts.content([run._replace(at="2027-01-01T00:00:00+00:00") for run in runs])[1]
    assert "†" not in later and "ADR 19" not in later


def test_figures_of_the_chaos_run_are_those_of_the_guarantees() -> None:
    [figures] = re.findall(r"last chaos run published ([\d,]+) messages through (\d+) kills of Postgres and (\d+)", prose())
    guarantees = " ".join((ROOT / "docs" / "explanation" / "guarantees.md").read_text().split())
    messages, servers, consumers = figures
    assert f"**{messages} messages**" in guarantees
    assert f"**{servers} kill -9 of Postgres, {consumers} kill -9" in guarantees


# Links


def test_every_link_and_picture_leads_to_a_file() -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", prose()) + re.findall(r'(?:src|srcset)="([^"]+)"', prose())
    assert len(links) > 50
    for link in links:
        if link.startswith("https://"):
            continue
        path, _, anchor = link.partition("#")
        target = ROOT / (path or "README.md")
        assert target.exists(), link
        if anchor:
            heads = re.findall(r"^#+ (.+)$", target.read_text(), re.MULTILINE)
            assert anchor in {re.sub(r"[^\w -]", "", head.lower()).replace(" ", "-") for head in heads}, link


def test_every_reason_to_use_it_has_a_proof() -> None:
    """A test, a guarantee, a page whose blocks are run, or a chart."""
    reasons = README.partition("## Why Trunkline\n\n")[2].partition("\n## ")[0]
    for reason in reasons.split("\n- "):
        assert re.search(r"\]\((tests/|docs/|#performance)", reason), reason
    rows = README.partition("## How it compares\n\n")[2].partition("| *Where Trunkline is behind*")[0].splitlines()[2:]
    assert len(rows) == 10
    for row in rows:
        assert re.match(r"\| .*\]\((docs/|#performance)", row), row


def test_the_comparison_has_a_cell_for_each_system() -> None:
    table = README.partition("## How it compares\n\n")[2].partition("\n\n")[0].splitlines()
    assert {row.count(" | ") + row.count(" |\n") for row in table[2:] if "*Where" not in row} == {7}
    assert {len(row.strip("|").split("|")) for row in table} == {8}


def test_links_of_the_package_lead_to_its_repository() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    source = project["urls"]["Source"]
    assert all(url.startswith(source) for url in project["urls"].values())
    for url in project["urls"].values():
        path = url.removeprefix(source).removeprefix("/blob/main/")
        assert path in ("", "/issues") or (ROOT / path).exists(), url
    assert re.fullmatch(r"\d+\.\d+\.\d+(\w+)?", __version__)


# Pictures


@pytest.mark.parametrize("light", PICTURES, ids=lambda path: path.stem)
def test_pictures_can_be_read_without_seeing_and_on_a_phone(light: Path) -> None:
    for path in (light, light.with_name(light.name.replace("-light", "-dark"))):
        root = ElementTree.fromstring(path.read_text())
        title, description = root.find(f"{_SVG}title"), root.find(f"{_SVG}desc")
        assert root.get("role") == "img" and title is not None and description is not None
        assert root.get("aria-labelledby") == f"{title.get('id')} {description.get('id')}"
        assert len(description.text or "") > 80
        assert re.search(r"url\(|href|<style|<script|<image|@import", path.read_text()) is None
        # On a phone, 358 pixels are left for it: 18 of 680 become 9.5.
        width = float((root.get("viewBox") or "").split()[2])
        sizes = [float(element.get("font-size", "20")) for element in root.iter()]
        assert min(sizes) * 358 / width > 9


def test_dark_pictures_have_the_colours_of_a_dark_page() -> None:
    dark = (ROOT / "docs" / "assets" / "overview-dark.svg").read_text()
    assert set(re.findall(r"#[0-9a-f]{6}", dark)) <= set(charts.DARK.values())
    with pytest.raises(KeyError):
        charts.darken('<rect fill="#123456"/>')
