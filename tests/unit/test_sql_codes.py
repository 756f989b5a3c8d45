"""The codes that the SQL raises and the table that explains them agree."""

from __future__ import annotations

import re

from trunkline import errors
from trunkline.sql import catalog

# Raised by Python alone (TL009), or kept for later use (TL030).
RESERVED = {"TL009", "TL030"}
# Raised and caught inside one function.
INTERNAL = {"TLX00"}


def raised() -> set[str]:
    """All codes of our class in the function files, comments left out."""
    text = "\n".join(file.text for file in catalog.functions())
    code = re.sub(r"--[^\n]*", "", text)
    return set(re.findall(r"'(TL[0-9A-Z]{3})'", code))


def explained() -> set[str]:
    return {code for code in errors.BY_SQLSTATE if code.startswith("TL")}


def test_every_code_that_sql_raises_has_a_class() -> None:
    assert raised() - INTERNAL - explained() == set()


def test_every_class_has_a_code_that_sql_raises() -> None:
    assert explained() - raised() == RESERVED


def test_every_failure_in_sql_has_a_hint() -> None:
    """`_fail` without its third argument would leave the caller without a way on."""
    for file in catalog.functions():
        for call in re.findall(r"perform trunkline\._fail\((.*?)\);", file.text, flags=re.DOTALL):
            depth, commas, quoted = 0, 0, False
            for char in call:
                quoted ^= char == "'"
                if not quoted:
                    depth += (char == "(") - (char == ")")
                    commas += char == "," and depth == 0
            assert commas == 2, f"{file.name}: {call}"
