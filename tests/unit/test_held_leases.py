"""Held leases: what is renewed when, and what is lost."""

from __future__ import annotations

from trunkline.runtime.leases import HeldLeases


def test_a_lease_is_due_when_its_part_has_passed() -> None:
    held = HeldLeases()
    held.add(["1.a", "2.a"], span=30, now=100)
    held.add(["1.b"], span=30, now=105)
    held.add(["1.c"], span=60, now=100)
    assert list(held.due(109.9, part=1 / 3)) == []
    assert list(held.due(110, part=1 / 3)) == [(["1.a", "2.a"], 30)]
    assert list(held.due(120, part=1 / 3)) == [(["1.a", "2.a", "1.b"], 30), (["1.c"], 60)]
    assert (len(held), held.end("1.b"), held.end("1.c"), held.end("9.z")) == (4, 135, 160, 0)


def test_an_extension_counts_from_its_call_and_loses_what_has_ended() -> None:
    held = HeldLeases()
    held.add(["1.a", "2.a", "3.a"], span=30, now=100)
    held.drop(["3.a", "3.a", "9.z"])
    # 3.a was settled during the call
    assert held.renewed(["1.a", "2.a", "3.a"], ["done", "lost", "done"], span=30, now=111) == ["2.a"]
    assert (held.end("1.a"), held.end("2.a"), held.end("3.a"), len(held)) == (141, 0, 0, 1)
    assert list(held.due(120, part=1 / 3)) == []


def test_what_could_not_be_extended_in_time_is_expired() -> None:
    held = HeldLeases()
    held.add(["1.a"], span=30, now=100)
    held.add(["1.b"], span=60, now=100)
    assert held.expired(130) == []
    assert held.expired(131) == ["1.a"]
    assert held.expired(131) == [] and len(held) == 1
