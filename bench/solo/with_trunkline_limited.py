"""Trunkline's jobs under a limit over all processes that never holds anything back: what the limit itself costs."""

from __future__ import annotations

from bench.solo.with_trunkline_jobs import LIMIT, TrunklineJobs
from trunkline.jobs import Limit


def make(url: str) -> TrunklineJobs:
    return TrunklineJobs(url, [Limit(LIMIT, running=1000)])
