"""Hooks of mkdocs: pages from outside of docs/, links into the repository, pictures for light and dark pages.

The Markdown files stay readable on their own. Paths here are relative to the checkout.
"""

from __future__ import annotations

import os.path
import re
import tomllib
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
# Pages of the site that are elsewhere in the checkout.
ELSEWHERE = {
    "CHANGELOG.md": "changelog.md",
    "CODE_OF_CONDUCT.md": "contributing/conduct.md",
    "CONTRIBUTING.md": "contributing/index.md",
    "SECURITY.md": "contributing/security.md",
    "bench/README.md": "contributing/benchmarks.md",
    "bench/results/README.md": "contributing/results.md",
    "examples/README.md": "examples.md",
    "src/trunkline/sql/README.md": "contributing/kernel.md",
}
_SOURCE_OF = {site: source for source, site in ELSEWHERE.items()}
LINK = re.compile(r"(!?)\[((?:[^\[\]]|\[[^\]]*\])*)\]\(([^)\s]+)\)")
_FENCE = re.compile(r"^```.*?^```$", re.MULTILINE | re.DOTALL)
_TEST_MARK = re.compile(r"^<!-- (?:not run|with): .* -->\n", re.MULTILINE)
_PICTURE = re.compile(
    r'<picture>\s*<source media="\(prefers-color-scheme: dark\)" srcset="(?P<dark>[^"]+)">\s*'
    r'<img alt="(?P<alt>[^"]*)" src="(?P<light>[^"]+)"[^>]*>\s*</picture>'
)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Take the repository's address from pyproject.toml, and list the decisions in the navigation."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    # Not as repo_url: for that, the theme asks the repository's host for its number of stars.
    config.extra["source"] = project["urls"]["Source"].rstrip("/")
    config.extra["social"] = [{"icon": "fontawesome/brands/git-alt", "link": config.extra["source"], "name": "Source code"}]
    decisions = sorted(path.name for path in (ROOT / "docs" / "adr").glob("[0-9]*.md"))
    assert config.nav is not None
    config.nav = _with_decisions(config.nav, [f"adr/{name}" for name in decisions])
    return config


def _with_decisions(nav: Any, decisions: list[str]) -> Any:
    if isinstance(nav, list):
        found: list[Any] = []
        for each in nav:
            found += decisions if each == "... | adr/*.md" else [_with_decisions(each, decisions)]
        return found
    if isinstance(nav, dict):
        return {title: _with_decisions(each, decisions) for title, each in nav.items()}
    return nav


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages from elsewhere."""
    for source, site in ELSEWHERE.items():
        files.append(File.generated(config, site, content=(ROOT / source).read_text()))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite links and pictures of a page for the site."""
    source = _SOURCE_OF.get(page.file.src_uri, f"docs/{page.file.src_uri}")
    text = _TEST_MARK.sub("", markdown)
    text = _PICTURE.sub(r"![\g<alt>](\g<light>#only-light)![\g<alt>](\g<dark>#only-dark)", text)
    return outside_fences(text, lambda part: LINK.sub(lambda match: _link(match, source, page, config), part))


def outside_fences(text: str, change: Callable[[str], str]) -> str:
    """Apply a change to everything but code blocks."""
    done, start = "", 0
    for fence in _FENCE.finditer(text):
        done += change(text[start : fence.start()]) + fence[0]
        start = fence.end()
    return done + change(text[start:])


def _link(match: re.Match[str], source: str, page: Page, config: MkDocsConfig) -> str:
    mark, label, target = match.groups()
    path, hash_mark, anchor = target.partition("#")
    if urlsplit(target).scheme or not path:
        return match[0]
    wanted = os.path.normpath(os.path.join(os.path.dirname(source), path))
    on_site = ELSEWHERE.get(wanted) or (wanted.removeprefix("docs/") if wanted.startswith("docs/") else None)
    if on_site is not None:
        if (ROOT / wanted).is_dir():
            on_site = f"{on_site}/index.md"
        here = os.path.relpath(on_site, os.path.dirname(page.file.src_uri) or ".")
        return f"{mark}[{label}]({here}{hash_mark}{anchor})"
    kind = "tree" if (ROOT / wanted).is_dir() else "blob"
    return f"{mark}[{label}]({config.extra['source']}/{kind}/main/{wanted}{hash_mark}{anchor})"
