"""The tabs of a topic."""

from __future__ import annotations

from trunkline.server.console.web import View

Tabs = list[tuple[str, str, bool, int | None]]
_TABS = {"": "Overview", "messages": "Messages", "readers": "Readers", "settings": "Settings", "publish": "Publish"}


def tabs(view: View, topic: str, here: str) -> Tabs:
    """Return the tabs of a topic's pages: word, address, whether it is the page, no count."""
    return [
        (word, view.url("topics", topic, *([part] if part else [])), part == here, None)
        for part, word in _TABS.items()
    ]  # fmt: skip
