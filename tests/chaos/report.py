"""Result of a check: a count for each rule, and a few examples."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

RULES = {
    "lost": "accepted, but not in the log, never given to a group, or never finished by its queue",
    "duplicate": "one message at two places, or one effect twice",
    "unexpected": "there although its publish failed or was rolled back, never sent, or of a label that was not asked for",
    "torn": "a transaction of which only a part arrived",
    "gap": "an offset that is missing between two others",
    "divergent": "one offset with two contents, or seen and gone later",
    "late_arrival": "not readable for somebody who knew that it was there",
    "order": "out of publish order, out of offset order, or two open leases in an ordered partition",
    "acked_redelivered": "delivered after it was finished",
    "double_lease": "two unexpired leases at one time",
    "stale_ack": "an expired or replaced lease that settled something",
    "early": "delivered before its due time",
    "after_ttl": "delivered although it was older than its queue allows",
    "after_purge": "delivered although a purge had removed it",
    "attempts": "delivery tries counted wrongly, or a dead letter too early or too late",
    "conservation": "accepted is not the sum of the states",
    "stale_commit": "a former owner's commit was taken",
    "commit_regress": "a group's position went back, and nobody had sought it back",
    "error": "an error of the server that no fault explains",
}
_EXAMPLES = 5


@dataclass
class Report:
    """Counts for each rule. `ok` when all are zero."""

    counts: Counter[str] = field(default_factory=Counter)
    examples: dict[str, list[str]] = field(default_factory=dict)
    totals: Counter[str] = field(default_factory=Counter)

    def add(self, rule: str, example: str, count: int = 1) -> None:
        if rule not in RULES:
            raise KeyError(rule)
        self.counts[rule] += count
        kept = self.examples.setdefault(rule, [])
        if len(kept) < _EXAMPLES:
            kept.append(example)

    @property
    def ok(self) -> bool:
        return not self.counts.total()

    def merge(self, other: Report) -> None:
        self.counts += other.counts
        self.totals += other.totals
        for rule, examples in other.examples.items():
            self.examples.setdefault(rule, []).extend(examples)

    def table(self) -> str:
        lines = [f"  {rule:18} {self.counts[rule]:>8}" for rule in RULES]
        lines += [f"      {rule}: {text}" for rule, texts in self.examples.items() for text in texts]
        checked = ", ".join(f"{count:,} {name}" for name, count in sorted(self.totals.items()))
        return "\n".join([*lines, f"  checked: {checked}"])
