"""Prometheus metrics: requests as psqlqueue counts them, plus depth, age, lag and rates."""

from __future__ import annotations

import asyncio
import os
import time
from typing import Any

from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

from trunkline import Client
from trunkline.db.calls import health, push
from trunkline.types import Stats

_SERVICE = "trunkline"
_SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10)
_BYTES = tuple(100 * 10**power for power in range(8))
_FRESH_SECONDS = 1.0
# Labels need fixed value sets: each value is a series kept for the life of the worker, and clients choose the method.
_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
_OTHER = "other"
# Each endpoint has about a dozen series. Read larger installations from the database.
_MOST_ENDPOINTS = 500
_MOST_PIPELINES = 500


class Metrics:
    """The counters of a worker. With several workers they are summed through files."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        labels = ("service", "handler", "method", "code")
        self._seconds = Histogram(
            "http_request_duration_seconds",
            "Latency of HTTP requests.",
            labels,
            registry=self.registry,
            buckets=_SECONDS,
        )
        self._bytes = Histogram(
            "http_response_size_bytes", "Size of HTTP responses.", labels, registry=self.registry, buckets=_BYTES
        )
        self._inflight = Gauge(
            "http_requests_inflight",
            "Number of HTTP requests in flight.",
            ("service", "handler"),
            registry=self.registry,
            multiprocess_mode="livesum",
        )
        self._published = Counter("trunkline_published", "Messages published through this server.", registry=self.registry)
        self._refused = Counter(
            "trunkline_requests_refused", "Requests refused to protect the server.", ("reason",), registry=self.registry
        )
        self._children: dict[tuple[str, str, int], tuple[Any, Any]] = {}
        self._gauges: dict[str, Any] = {}
        self._stats: Stats | None = None
        self._ages = health.Ages(0, 0)
        self._endpoints: list[push.EndpointStats] = []
        self._tasks: list[health.UpkeepTask] = []
        self._pipelines: list[health.PipelineLag] = []
        self._stats_at = 0.0
        self._rendering = asyncio.Lock()

    def begun(self, handler: str) -> None:
        gauge = self._gauges.get(handler)
        if gauge is None:
            gauge = self._gauges[handler] = self._inflight.labels(_SERVICE, handler)
        gauge.inc()

    def ended(self, handler: str) -> None:
        self._gauges[handler].dec()

    def observed(self, handler: str, method: str, code: int, seconds: float, size: int) -> None:
        method = method if method in _METHODS else _OTHER
        key = (handler, method, code)
        child = self._children.get(key)
        if child is None:
            names = (_SERVICE, handler, method, str(code))
            child = self._children[key] = (self._seconds.labels(*names), self._bytes.labels(*names))
        child[0].observe(seconds)
        child[1].observe(size)

    def published(self, n: int) -> None:
        self._published.inc(n)

    def refused(self, reason: str) -> None:
        self._refused.labels(reason).inc()

    async def render(self, mq: Client) -> tuple[bytes, str]:
        """Return all metrics as text. Database values are at most a second old.

        Scrapes are serialised and rendered in a thread: many series take seconds, which must not block requests.
        """
        async with self._rendering:
            if self._stats is None or time.monotonic() - self._stats_at > _FRESH_SECONDS:
                self._stats = await mq.stats()
                async with mq.connection() as conn:
                    self._ages = await health.ages(conn)
                    self._endpoints = await push.endpoint_stats(conn, limit=_MOST_ENDPOINTS)
                    self._tasks = await health.upkeep_tasks(conn)
                    self._pipelines = await health.pipeline_lags(conn, _MOST_PIPELINES)
                self._stats_at = time.monotonic()
            rows = _Database(self._stats, self._ages, self._endpoints, self._tasks, self._pipelines)
            return await asyncio.to_thread(self._text, rows), CONTENT_TYPE_LATEST

    def _text(self, rows: _Database) -> bytes:
        registry = self.registry
        if "PROMETHEUS_MULTIPROC_DIR" in os.environ:
            registry = CollectorRegistry()
            MultiProcessCollector(registry)  # type: ignore[no-untyped-call]
        database = CollectorRegistry()
        database.register(rows)
        return generate_latest(registry) + generate_latest(database)


class _Database(Collector):
    """Metrics of topics, groups, queues, endpoints, upkeep tasks and Spark pipelines."""

    def __init__(
        self,
        stats: Stats,
        ages: health.Ages,
        endpoints: list[push.EndpointStats],
        tasks: list[health.UpkeepTask],
        pipelines: list[health.PipelineLag],
    ) -> None:
        self._stats = stats
        self._ages = ages
        self._endpoint_stats = endpoints
        self._tasks = tasks
        self._pipeline_lags = pipelines

    def collect(self) -> list[GaugeMetricFamily]:
        return [
            *self._queues(),
            *self._topics(),
            *self._groups(),
            *self._endpoints(),
            *self._waits(),
            *self._upkeep(),
            *self._pipelines(),
        ]

    def _pipelines(self) -> list[GaugeMetricFamily]:
        labels = ["pipeline"]
        lag = GaugeMetricFamily("trunkline_pipeline_lag", "Messages not yet read by a Spark query.", labels=labels)
        failed = GaugeMetricFamily("trunkline_pipeline_failed", "Whether a Spark pipeline or query failed.", labels=labels)
        age = GaugeMetricFamily(
            "trunkline_pipeline_report_age_seconds", "Time since a running pipeline or query last reported.", labels=labels
        )
        for row in self._pipeline_lags:
            failed.add_metric([row.name], row.state == "failed")
            if row.state == "running":
                age.add_metric([row.name], row.age)
                if row.lag is not None:
                    lag.add_metric([row.name], row.lag)
        return [lag, failed, age]

    def _upkeep(self) -> list[GaugeMetricFamily]:
        failing = GaugeMetricFamily(
            "trunkline_upkeep_task_failing", "Whether the last run of an upkeep task failed.", labels=["task"]
        )
        age = GaugeMetricFamily(
            "trunkline_upkeep_task_age_seconds",
            "Time since the last run of an upkeep task, successful or not.",
            labels=["task"],
        )
        for row in self._tasks:
            failing.add_metric([row.task], row.state == "failing")
            if row.age is not None:
                age.add_metric([row.task], row.age)
        return [failing, age]

    def _waits(self) -> list[GaugeMetricFamily]:
        held = "Age of the oldest transaction that holds back vacuum (xmin)."
        late = "Age of the oldest open transaction that has published messages."
        return [
            GaugeMetricFamily("trunkline_oldest_transaction_age_seconds", held, value=self._ages.transaction),
            GaugeMetricFamily("trunkline_unsequenced_age_seconds", late, value=self._ages.unsequenced),
        ]

    def _queues(self) -> list[GaugeMetricFamily]:
        depth = GaugeMetricFamily("trunkline_queue_messages", "Messages of a queue by state.", labels=["queue", "state"])
        settled = GaugeMetricFamily(
            "trunkline_queue_settled_messages",
            "Settled messages of a queue since it was created.",
            labels=["queue", "state"],
        )
        age = GaugeMetricFamily(
            "trunkline_queue_oldest_ready_age_seconds", "Age of the oldest claimable message.", labels=["queue"]
        )
        paused = GaugeMetricFamily("trunkline_queue_paused", "Whether the queue is paused.", labels=["queue"])
        for row in self._stats.queues:
            for state in ("ready", "delayed", "leased", "dead"):
                depth.add_metric([row.queue, state], getattr(row, state))
            for state in ("acked", "expired", "purged"):
                settled.add_metric([row.queue, state], getattr(row, state))
            age.add_metric([row.queue], row.oldest_age)
            paused.add_metric([row.queue], row.paused)
        return [depth, settled, age, paused]

    def _endpoints(self) -> list[GaugeMetricFamily]:
        requests = GaugeMetricFamily(
            "trunkline_endpoint_recent_deliveries",
            "Deliveries by outcome, among an endpoint's newest 1,000 of the last minute.",
            labels=["endpoint", "outcome"],
        )
        rate = GaugeMetricFamily(
            "trunkline_endpoint_deliveries_per_second", "Deliveries per second over the last minute.", labels=["endpoint"]
        )
        seconds = GaugeMetricFamily(
            "trunkline_endpoint_request_seconds", "Request duration over the last minute.", labels=["endpoint", "quantile"]
        )
        held = GaugeMetricFamily(
            "trunkline_endpoint_leased_messages", "Leased messages of an endpoint's queues.", labels=["endpoint"]
        )
        age = GaugeMetricFamily(
            "trunkline_endpoint_oldest_ready_age_seconds",
            "Age of the oldest ready message of an endpoint.",
            labels=["endpoint"],
        )
        breaker = GaugeMetricFamily(
            "trunkline_endpoint_breaker",
            "Circuit breaker of an endpoint: 0 closed, 1 half-open, 2 open.",
            labels=["endpoint"],
        )
        enabled = GaugeMetricFamily("trunkline_endpoint_enabled", "Whether the endpoint is enabled.", labels=["endpoint"])
        queues = {row.queue: row for row in self._stats.queues}
        for row in self._endpoint_stats:
            for outcome in ("acked", "nacked", "buried", "released", "tested"):
                requests.add_metric([row.endpoint, outcome], getattr(row, outcome))
            rate.add_metric([row.endpoint], row.per_second)
            for quantile, value in (("0.5", row.seconds_p50), ("0.99", row.seconds_p99)):
                if value is not None:
                    seconds.add_metric([row.endpoint, quantile], value)
            of_it = [queues[name] for name in row.queues if name in queues]
            held.add_metric([row.endpoint], sum(queue.leased for queue in of_it))
            age.add_metric([row.endpoint], max((queue.oldest_age for queue in of_it), default=0.0))
            breaker.add_metric([row.endpoint], ("closed", "half-open", "open").index(row.breaker))
            enabled.add_metric([row.endpoint], row.state == "enabled")
        return [requests, rate, seconds, held, age, breaker, enabled]

    def _topics(self) -> list[GaugeMetricFamily]:
        labels = ["topic", "partition"]
        head = GaugeMetricFamily("trunkline_topic_head_offset", "Highest offset.", labels=labels)
        lowest = GaugeMetricFamily("trunkline_topic_lowest_offset", "Earliest available offset.", labels=labels)
        size = GaugeMetricFamily("trunkline_topic_bytes", "Bytes on disk.", labels=labels)
        rate = GaugeMetricFamily(
            "trunkline_topic_messages_per_second", "Messages per second over the last minute.", labels=labels
        )
        delayed = GaugeMetricFamily("trunkline_topic_scheduled_messages", "Delayed messages of a topic.", labels=["topic"])
        for row in self._stats.topics:
            names = [row.topic, str(row.partition)]
            head.add_metric(names, row.head)
            lowest.add_metric(names, row.earliest_offset)
            size.add_metric(names, row.bytes or 0)
            rate.add_metric(names, row.rate_per_second)
            if row.partition == 0:
                delayed.add_metric([row.topic], row.delayed)
        return [head, lowest, size, rate, delayed]

    def _groups(self) -> list[GaugeMetricFamily]:
        labels = ["topic", "group", "partition"]
        lag = GaugeMetricFamily("trunkline_group_lag_messages", "Messages not yet committed by a group.", labels=labels)
        late = GaugeMetricFamily(
            "trunkline_group_lag_seconds", "Age of the oldest message not yet committed by a group.", labels=labels
        )
        for row in self._stats.groups:
            names = [row.topic, row.group, str(row.partition)]
            lag.add_metric(names, row.lag)
            late.add_metric(names, row.lag_seconds)
        return [lag, late]
