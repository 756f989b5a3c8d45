"""The check of the width of Markdown."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[2] / "tools"))

import widths

WORDS = ("word " * 40).strip()


def test_wide_paragraphs_and_items_are_wrapped() -> None:
    text = f"{WORDS}\nthe rest of it\n\n- {WORDS}\n  the rest of it\n- another\n\n> {WORDS}\n> the rest\n"
    assert len(list(widths.long_lines(text))) == 3
    wrapped = widths.wrap(text)
    assert list(widths.long_lines(wrapped)) == []
    assert [word for word in wrapped.split() if word != ">"] == [word for word in text.split() if word != ">"]
    assert "\n  word" in wrapped and "\n> word" in wrapped and "\n- another\n" in wrapped
    assert widths.wrap(wrapped) == wrapped


@pytest.mark.parametrize("text", [f"| {WORDS} |\n", f"```text\n{WORDS}\n```\n", f"# {WORDS}\n", "x" * 200 + "\n"])
def test_other_lines_are_not_changed(text: str) -> None:
    assert list(widths.long_lines(text)) == []
    assert widths.wrap(text) == text


def test_the_tree_keeps_to_the_width(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(Path(__file__).parents[2])
    assert widths.main([]) == 0, capsys.readouterr().out
