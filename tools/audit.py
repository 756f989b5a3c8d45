"""Check the dependencies in the lock files.

Verifies that every entry is one exact version with at least one SHA-256, and that the installed packages are compatible
(`pip check`) and match the lock files. If the package index responds, also verifies that no locked release was yanked
and that the index has every locked hash. An index that does not respond is reported, but is a failure only with
`--strict`.

Does not check for known vulnerabilities: that requires an advisory database (PyPI's JSON API or OSV), which machines
with access to a package index only cannot reach. With full network access, run `pip-audit --require-hashes -r
requirements.lock`.
"""

from __future__ import annotations

import argparse
import html
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from importlib import metadata
from pathlib import Path

ROOT = Path(__file__).parents[1]
LOCKS = ("requirements.lock", "requirements-spark.lock", "requirements-runtime.lock", "requirements-build.lock")
_ENTRY = re.compile(r"^([A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==([^\s;\\]+)")
_HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})(?=\s|$)")
_LINK = re.compile(r"<a\s+([^>]*)>([^<]*)</a>")


@dataclass
class Entry:
    """One locked release."""

    name: str
    version: str
    hashes: set[str] = field(default_factory=set)


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def read_lock(text: str) -> tuple[list[Entry], list[str]]:
    """Return the entries of a lock file, and its faults."""
    entries: list[Entry] = []
    faults: list[str] = []
    for block in re.split(r"\n(?=\S)", text.strip()):
        match = _ENTRY.match(block)
        if match is None:
            if not block.startswith("#"):
                faults.append(f"not one exact version: {block.splitlines()[0]}")
            continue
        entry = Entry(normal(match[1]), match[2], set(_HASH.findall(block)))
        if not entry.hashes:
            faults.append(f"no hash: {entry.name} {entry.version}")
        entries.append(entry)
    return entries, faults


def compare_installed(entries: list[Entry], installed: dict[str, str]) -> list[str]:
    """Return differences between locked and installed versions.

    Ignores packages that are not installed or not locked.
    """
    locked: dict[str, set[str]] = {}
    for entry in entries:
        locked.setdefault(entry.name, set()).add(entry.version)
    return [
        f"installed is {name} {version}, locked is {' or '.join(sorted(locked[name]))}"
        for name, version in sorted(installed.items())
        if name in locked and version not in locked[name]
    ]


def read_index_page(page: str) -> tuple[set[str], set[str]]:
    """Return the SHA-256 hashes of all files on a project page, and those of yanked files."""
    hashes: set[str] = set()
    yanked: set[str] = set()
    for attributes, _ in _LINK.findall(page):
        match = re.search(r"sha256=([0-9a-f]{64})", html.unescape(attributes))
        if match:
            hashes.add(match[1])
            if "data-yanked" in attributes:
                yanked.add(match[1])
    return hashes, yanked


def judge(entry: Entry, page: str) -> list[str]:
    """Return the faults of a locked release according to its index page."""
    hashes, yanked = read_index_page(page)
    faults = []
    if not hashes:
        return [f"{entry.name}: the index shows no hashes"]
    if strange := entry.hashes - hashes:
        faults.append(f"{entry.name} {entry.version}: {len(strange)} locked hashes are not in the index")
    if entry.hashes & yanked:
        faults.append(f"{entry.name} {entry.version} was yanked")
    return faults


def index_url() -> str:
    configured = (
        os.environ.get("PIP_INDEX_URL")
        or subprocess.run(
            [sys.executable, "-m", "pip", "config", "get", "global.index-url"], capture_output=True, text=True, check=False
        ).stdout.strip()
    )
    return (configured or "https://pypi.org/simple").rstrip("/")


def ask_index(url: str, name: str) -> str | None:
    """Return the page of a project; None if the index does not respond."""
    request = urllib.request.Request(f"{url}/{name}/", headers={"accept": "text/html"})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return str(response.read().decode())
    except (urllib.error.URLError, TimeoutError, ConnectionError):
        return None


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--strict", action="store_true", help="fail if the index does not respond")
    parser.add_argument("--offline", action="store_true", help="do not query the index")
    options = parser.parse_args()
    faults: list[str] = []
    releases: dict[tuple[str, str], Entry] = {}
    for lock in LOCKS:
        entries, wrong = read_lock((ROOT / lock).read_text())
        faults += [f"{lock}: {fault}" for fault in wrong]
        for entry in entries:
            releases.setdefault((entry.name, entry.version), Entry(entry.name, entry.version)).hashes.update(entry.hashes)
    installed = {normal(dist.metadata["Name"]): dist.version for dist in metadata.distributions()}
    faults += compare_installed(list(releases.values()), installed)
    fits = subprocess.run([sys.executable, "-m", "pip", "check"], capture_output=True, text=True, check=False)
    if fits.returncode:
        faults += [f"pip check: {line}" for line in fits.stdout.strip().splitlines()]
    silent: list[str] = []
    if not options.offline:
        url = index_url()
        # Probe once, so that an unreachable index causes one timeout instead of a hundred.
        reachable = ask_index(url, next(iter(releases.values())).name) is not None
        with ThreadPoolExecutor(16) as pool:
            pages = pool.map(lambda entry: ask_index(url, entry.name) if reachable else None, releases.values())
        for entry, page in zip(releases.values(), pages, strict=True):
            if page is None:
                silent.append(entry.name)
            else:
                faults += judge(entry, page)
        if silent:
            print(
                f"audit: no response from the index for {len(silent)} of {len(releases)} releases, not checked for yanking"
            )
    for fault in faults:
        print(f"audit: {fault}", file=sys.stderr)
    if not faults:
        print(f"audit: {len(releases)} releases, all with hashes" + ("" if silent or options.offline else ", none yanked"))
    return 1 if faults or (silent and options.strict) else 0


if __name__ == "__main__":
    sys.exit(main())
