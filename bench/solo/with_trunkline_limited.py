"""Trunkline jobs under a global limit that is never reached, to measure the overhead of the limit."""

from __future__ import annotations

from bench.solo.with_trunkline_jobs import LIMIT, TrunklineJobs
from trunkline.jobs import Limit


def make(url: str) -> TrunklineJobs:
    return TrunklineJobs(url, [Limit(LIMIT, running=1000)])
