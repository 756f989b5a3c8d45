"""The leases that a consumer holds, and when they must be renewed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from trunkline.types import Result


class HeldLeases:
    """Receipts of unsettled deliveries, by lease duration. Callers pass the time and make the calls.

    Clients and dispatchers renew from their event loop, workers from a separate thread, because handlers may block the
    loop: iteration uses copies. Times are by this process's monotonic clock, taken before the call that leased or
    extended, because the response may be slow.
    """

    def __init__(self) -> None:
        self._spans: dict[float, dict[str, float]] = {}
        """Ends of leases by duration and receipt."""

    def __len__(self) -> int:
        return sum(len(ends) for ends in tuple(self._spans.values()))

    def add(self, receipts: Iterable[str], *, span: float, now: float) -> None:
        self._spans.setdefault(span, {}).update(dict.fromkeys(receipts, now + span))

    def drop(self, receipts: Iterable[str]) -> None:
        spans = tuple(self._spans.values())
        for receipt in receipts:
            for ends in spans:
                ends.pop(receipt, None)

    def end(self, receipt: str) -> float:
        """Return the end of a lease. A receipt that is not held has ended."""
        return max((ends.get(receipt, 0.0) for ends in tuple(self._spans.values())), default=0.0)

    def due(self, now: float, *, part: float) -> Iterator[tuple[list[str], float]]:
        """Yield the receipts to extend with the duration. A lease is due when this part of it has passed."""
        for span, ends in tuple(self._spans.items()):
            limit = now + span * (1 - part)
            if receipts := [receipt for receipt, end in tuple(ends.items()) if end <= limit]:
                yield receipts, span

    def renewed(self, receipts: Sequence[str], results: Sequence[Result], *, span: float, now: float) -> list[str]:
        """Record the results of an extension made at `now`. Returns and drops the receipts that were lost."""
        ends = self._spans[span]
        lost = []
        for receipt, result in zip(receipts, results, strict=True):
            if result != "done":
                lost.append(receipt)
            elif receipt in ends:
                ends[receipt] = now + span
        self.drop(lost)
        return lost

    def expired(self, now: float) -> list[str]:
        """Return and drop the receipts whose lease has ended because it could not be extended."""
        ended = [receipt for ends in tuple(self._spans.values()) for receipt, end in tuple(ends.items()) if end < now]
        self.drop(ended)
        return ended
