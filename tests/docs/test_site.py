"""The documentation as a site: it builds without a warning, loads nothing from other hosts, and its links resolve."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

import pytest

from tests.docs.pages import ROOT, pages

LINK = re.compile(r"\[(?:[^\[\]]|\[[^\]]*\])*\]\(([^)\s]+)\)|(?:src|srcset|href)=\"([^\"]+)\"")
_CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
_CITED = re.compile(r"(?<![\w/.])docs/[\w/.-]*\w")


def tracked(*patterns: str) -> list[str]:
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *patterns]
    listed = subprocess.run(command, capture_output=True, text=True, check=True, cwd=ROOT)
    return [name for name in listed.stdout.split() if (ROOT / name).is_file()]


def links(text: str) -> list[str]:
    """Return the targets of a page's links and pictures that are not in code."""
    return [first or second for first, second in LINK.findall(_CODE.sub("", text))]


def anchors(text: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site name them."""
    heads = re.findall(r"^#+ (.+)$", re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL), re.MULTILINE)
    return {
        re.sub(r"[^\w\- ]", "", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", head).lower()).replace(" ", "-") for head in heads
    }


def broken(page: Path, text: str) -> Iterator[str]:
    """Yield the relative links of a page that lead nowhere."""
    for link in links(text):
        if urlsplit(link).scheme:
            continue
        path, _, anchor = link.partition("#")
        target = page.parent / path if path else page
        if not target.exists() or (anchor and anchor not in anchors(target.read_text() if path else text)):
            yield link


@pytest.mark.parametrize("page", tracked("*.md"))
def test_links_lead_somewhere(page: str) -> None:
    assert list(broken(ROOT / page, (ROOT / page).read_text())) == []


def test_a_broken_link_is_found(tmp_path: Path) -> None:
    (tmp_path / "there.md").write_text("# A heading\n\n```sh\n# no heading\n```\n")
    text = (
        "[a](there.md) [b](gone.md) [c](there.md#a-heading) [d](there.md#no-heading) `[e](code.md)` [f](https://x.org/y)\n"
        '<img src="gone.svg">\n'
    )
    assert list(broken(tmp_path / "page.md", text)) == ["gone.md", "there.md#no-heading", "gone.svg"]


@pytest.mark.parametrize("kind", ["py", "sql", "toml", "yml"])
def test_pages_cited_by_code_exist(kind: str) -> None:
    missing = [
        f"{name}: {cited}"
        # a migration is never edited, so it may cite a page that has moved
        for name in tracked(f"*.{kind}")
        if "/migrations/" not in name and not name.startswith("tests/docs/")
        for cited in _CITED.findall((ROOT / name).read_text())
        if not (ROOT / cited).exists() and not list(ROOT.glob(f"{cited}*.md")) and "*" not in cited
    ]
    assert missing == []


# The built site


class Resources(HTMLParser):
    """Collects what a page loads, and what it links to."""

    def __init__(self) -> None:
        super().__init__()
        self.loaded: list[str] = []
        self.linked: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag in ("script", "img", "iframe", "source") and "src" in given:
            self.loaded.append(given["src"])
        elif tag == "link" and given.get("rel") not in ("canonical", "next", "prev", "edit"):
            self.loaded.append(given["href"])
        elif tag == "a" and "href" in given:
            self.linked.append(given["href"])


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    # without this, the theme announces its successor at each start
    env = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, env=env)
    assert done.returncode == 0, done.stderr
    assert "WARNING" not in done.stderr
    return folder


def resources(page: Path) -> Resources:
    found = Resources()
    found.feed(page.read_text())
    return found


def test_every_page_is_in_the_site(site: Path) -> None:
    for page in pages():
        if page.startswith("docs/"):
            assert (site / page.removeprefix("docs/")).with_suffix(".html").exists(), page


def test_nothing_is_loaded_from_other_hosts(site: Path) -> None:
    for page in site.rglob("*.html"):
        assert [each for each in resources(page).loaded if urlsplit(each).netloc] == [], page
        # the theme would ask the host of a repository for its number of stars
        assert 'data-md-component="source"' not in page.read_text(), page
    for sheet in site.rglob("*.css"):
        assert "url(http" not in sheet.read_text() and "@import" not in sheet.read_text(), sheet


def test_links_of_the_site_lead_to_files(site: Path) -> None:
    for page in site.rglob("*.html"):
        if page.name == "404.html":
            continue
        found = resources(page)
        for each in {*found.loaded, *found.linked}:
            parts = urlsplit(each)
            if parts.scheme or parts.netloc or not parts.path:
                continue
            assert (page.parent / unquote(parts.path)).exists(), f"{page.relative_to(site)}: {each}"


def test_search_needs_no_server(site: Path) -> None:
    index = (site / "search" / "search_index.js").read_text().removeprefix("var __index = ")
    texts = {each["location"]: each["text"] for each in json.loads(index)["docs"]}
    assert "dead letter" in texts["how-to/dead-letters.html"]
    assert "assets/iframe-worker.js" in resources(site / "index.html").loaded


def test_pictures_follow_the_colours_of_the_page(site: Path) -> None:
    loaded = resources(site / "explanation" / "architecture.html").loaded
    assert {"../assets/layers-light.svg#only-light", "../assets/layers-dark.svg#only-dark"} <= set(loaded)


def test_marks_for_the_tests_are_not_shown(site: Path) -> None:
    assert not [page for page in site.rglob("*.html") if "<!-- not run:" in page.read_text()]


@pytest.mark.parametrize("writer", ["docs_diagrams.py", "docs_performance.py"])
def test_drawings_and_tables_are_up_to_date(writer: str) -> None:
    command = [sys.executable, str(ROOT / "tools" / writer), "--check"]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0, done.stderr
