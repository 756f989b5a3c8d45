"""Spark on two cores: reads, writes, streams and archive with the format "trunkline", compared with Spark's JDBC."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import pairwise
from statistics import median
from typing import TYPE_CHECKING, TypeVar

from bench.lab import Lab
from bench.plan import Plan
from bench.rounds import interleave, say
from bench.rows import Goal, Row, at_least, at_most, compare, figure, ratio
from bench.spark import jdbc, moves, topics
from bench.spark.bed import JAR, PAYLOAD, Bed, open_bed
from bench.spark.cpu import middle
from bench.spark.start import Starts
from trunkline.errors import SparkUnavailable
from trunkline.spark.session.session import check_java, check_pyspark
from trunkline.spark.source.ranges import Head

if TYPE_CHECKING:
    from pyspark.sql import DataFrame

T = TypeVar("T")

_OURS = "trunkline"
_TIERED = "trunkline, 80 % archived"
_TENTH = "trunkline, a tenth of it"
_STREAM = "trunkline, stream"
_TASKS = 8
_PARTITIONS = 4
_MAIN, _FRAGMENTED = "spark-main", "spark-fragmented"
# Number of batches of a measured stream.
_BATCHES = 10
_STARTS = 3
# The fragmented log is filled for this many measurement times: with a short log, the start of tasks would dominate.
_FILLING = 8


class Sizes:
    """Number of messages to read and to write."""

    def __init__(self, plan: Plan) -> None:
        self.read = 200_000 if plan.quick else 2_000_000
        self.write = self.read // 2
        self.archived = self.read * 8 // 10


def run(lab: Lab, plan: Plan) -> list[Row]:
    try:
        check_pyspark()
        check_java()
    except SparkUnavailable as exc:
        say(f"  spark: skipped, {exc}")
        return []
    sizes = Sizes(plan)
    if not JAR.exists():
        say(f"  spark: skipping the comparison with JDBC: {JAR} is missing (Debian: libpostgresql-jdbc-java)")
    with open_bed(lab) as bed:
        rows = _read_fragmented(bed, plan)
        main = topics.make(lab, _MAIN, partitions=_PARTITIONS)
        archived = _archive(bed, plan, main, sizes)
        topics.fill(lab, main, first=sizes.archived, messages=sizes.read - sizes.archived)
        _calm(lab, main)
        rows += [*_read(bed, plan, main, sizes), *archived]
        written, copied = _write(bed, plan, sizes)
        rows += [*written, *_topic_to_topic(bed, plan, sizes, copied)]
        starts = Starts(lab, lab.directory / "spark", _FRAGMENTED)
    # After the main session has stopped, to leave its memory to the fresh processes.
    rows += _start(starts, plan)
    return rows


# Reading


def _read_fragmented(bed: Bed, plan: Plan) -> list[Row]:
    """Measure a log whose row ids jump, because many publishers wrote to it one by one."""
    number = topics.make(bed.lab, _FRAGMENTED)
    say(f"  spark: filling a log with {plan.publishers} publishers")
    messages = topics.fill_by_many(bed.lab, number, publishers=plan.publishers, seconds=_FILLING * plan.seconds)
    _calm(bed.lab, number)
    contestants = {
        _OURS: lambda: moves.read(bed, _FRAGMENTED, tasks=_TASKS),
        **_with_jdbc(lambda: jdbc.read(bed, number, _FRAGMENTED, tasks=_TASKS)),
    }
    _warm_up(contestants.values())
    title = "spark, read a fragmented log"
    measured = interleave(
        title,
        "rows/s",
        {
            name: partial(_rate, bed, f"{title}: {name}", messages, lambda frame=frame: moves.to_nowhere(frame()))
            for name, frame in contestants.items()
        },
        rounds=plan.rounds,
    )
    note = f"{messages:,} rows by {plan.publishers} single publishers"
    return _compared(bed, title, measured, goals={jdbc.NAME: at_least(1)}, note=note)


def _read(bed: Bed, plan: Plan, number: int, sizes: Sizes) -> list[Row]:
    tenth = [_shortened(head) for head in topics.ends(bed.url, _MAIN)]
    tenth_rows = sum(head.head - head.base for head in tenth)
    frames: dict[str, Callable[[], DataFrame]] = {
        _OURS: lambda: moves.read(bed, _MAIN, tasks=_TASKS),
        _TIERED: lambda: moves.read(bed, _MAIN, tasks=_TASKS, tier="auto"),
        **_with_jdbc(lambda: jdbc.read(bed, number, _MAIN, tasks=_TASKS)),
    }
    noop, parquet = "spark, read to noop", "spark, read to Parquet"
    _warm_up(frames.values())
    with bed.output() as path:
        moves.read(bed, _MAIN, tasks=_TASKS, until=tenth).write.parquet(path)
    to_noop = interleave(
        noop,
        "rows/s",
        {
            **{
                name: partial(_rate, bed, f"{noop}: {name}", sizes.read, lambda frame=frame: moves.to_nowhere(frame()))
                for name, frame in frames.items()
            },
            _TENTH: lambda: _rate(
                bed, _TENTH, tenth_rows, lambda: moves.to_nowhere(moves.read(bed, _MAIN, tasks=_TASKS, until=tenth))
            ),
        },
        rounds=plan.rounds,
    )
    to_parquet = interleave(
        parquet,
        "rows/s",
        {
            **{name: partial(_parquet_rate, bed, f"{parquet}: {name}", sizes.read, frame) for name, frame in frames.items()},
            _STREAM: lambda: _stream_rate(bed, _STREAM, _MAIN, sizes.read),
        },
        rounds=plan.rounds,
    )
    note = f"{sizes.read:,} rows, {_TASKS} tasks"
    rows = []
    for title, measured, live_goal, tiered_goal in ((noop, to_noop, 1.2, 2.0), (parquet, to_parquet, None, None)):
        for ours, limit in ((_OURS, live_goal), (_TIERED, tiered_goal)):
            chosen = {name: measured[name] for name in (ours, jdbc.NAME) if name in measured}
            goals = {} if limit is None else {jdbc.NAME: at_least(limit)}
            kind = title if ours == _OURS else f"{title}, tiered"
            rows += _compared(bed, kind, chosen, goals=goals, note=note, measured_as=title)
    if jdbc.NAME in frames:
        rows.append(_tiered_cpu(bed, noop))
    rows.append(_ten_times(to_noop, sizes.read, tenth_rows))
    rows += compare(
        "spark, stream to Parquet",
        PAYLOAD,
        "rows/s",
        {_STREAM: to_parquet[_STREAM], "batch read to Parquet": to_parquet[_OURS]},
        goals={"batch read to Parquet": at_least(0.6)},
        notes={_STREAM: f"{_per_batch(sizes.read)}; {middle(bed.cpu[_STREAM])}"},
    )
    return rows


def _shortened(head: Head) -> Head:
    return Head(head.topic, head.topic_id, head.partition, head.base, head.base + (head.head - head.base) // 10)


def _tiered_cpu(bed: Bed, title: str) -> Row:
    tiered, theirs = ([cpu.postgres for cpu in bed.cpu[f"{title}: {name}"]] for name in (_TIERED, jdbc.NAME))
    shares = ratio(tiered, theirs)
    return figure(
        "spark, Postgres CPU",
        "a tiered read, divided by JDBC's",
        median(shares),
        "x",
        payload=PAYLOAD,
        rounds=shares,
        goal=at_most(0.1),
        note=f"{median(tiered):.2f} and {median(theirs):.2f} s",
    )


def _ten_times(measured: Mapping[str, Sequence[float]], rows: int, tenth_rows: int) -> Row:
    seconds = [rows / rate for rate in measured[_OURS]]
    tenths = [tenth_rows / rate for rate in measured[_TENTH]]
    times = ratio(seconds, tenths)
    return figure(
        "spark, ten times the data",
        "time of all, divided by that of a tenth",
        median(times),
        "x",
        payload=PAYLOAD,
        rounds=times,
        goal=at_most(11),
        note=f"{median(seconds):.2f} and {median(tenths):.2f} s",
    )


# Archive


def _archive(bed: Bed, plan: Plan, number: int, sizes: Sizes) -> list[Row]:
    """Measure archiving. Each round adds messages, which one side archives and the other writes with DataFrames."""
    from trunkline.spark.archive.writer import archive

    title, frames = "spark, archive", "through DataFrames"
    location = bed.place()
    each = sizes.archived // plan.rounds
    borders: list[dict[int, int]] = [dict.fromkeys(range(_PARTITIONS), 1)]
    taken = {_OURS: 0, frames: 0}

    def spans(name: str) -> dict[int, tuple[int, int]]:
        """Return the offsets of this contestant's next round. The first contestant of a round fills the log."""
        taken[name] += 1
        if taken[name] == len(borders):
            first = each * (len(borders) - 1)
            last = len(borders) == plan.rounds
            topics.fill(bed.lab, number, first=first, messages=(sizes.archived - first) if last else each)
            _calm(bed.lab, number)
            borders.append({head.partition: head.head for head in topics.ends(bed.url, _MAIN)})
        before, after = list(pairwise(borders))[taken[name] - 1]
        return {partition: (before[partition], after[partition]) for partition in before}

    def to_archive() -> float:
        rows = _rows_in(spans(_OURS))

        def work() -> None:
            done = archive(bed.url, _MAIN, location, open=True, spark=bed.spark)
            if done.rows != rows:
                raise RuntimeError(f"{done.rows} of {rows} rows were archived")

        return _rate(bed, f"{title}: {_OURS}", rows, work)

    def to_frames() -> float:
        found = spans(frames)
        frame = partial(moves.read_all_columns, bed, _MAIN, found, tasks=_PARTITIONS)
        return _parquet_rate(bed, f"{title}: {frames}", _rows_in(found), frame)

    measured = interleave(title, "rows/s", {_OURS: to_archive, frames: to_frames}, rounds=plan.rounds)
    note = f"{each:,} rows in each round, {_PARTITIONS} files"
    return _compared(bed, title, measured, goals={frames: at_least(1.2)}, note=note)


def _rows_in(spans: Mapping[int, tuple[int, int]]) -> int:
    return sum(hi - lo for lo, hi in spans.values())


# Writing


def _write(bed: Bed, plan: Plan, sizes: Sizes) -> tuple[list[Row], str]:
    """Return the figures, and a topic with the written messages."""
    title, spread = "spark, write", f"trunkline, {_PARTITIONS} partitions"
    source = bed.place()
    moves.read(bed, _MAIN, tasks=_TASKS).select("key", "value").limit(sizes.write).repartition(_TASKS).write.parquet(source)
    frame = bed.spark.read.parquet(source)

    whole: dict[int, str] = {}

    def ours(name: str, partitions: int, warm_up: bool = False) -> float:
        topic, number = bed.new_topic("spark-written", partitions)
        whole[partitions] = topic
        rows = sizes.write // 10 if warm_up else sizes.write
        chosen = frame.limit(rows) if warm_up else frame
        rate = _rate(bed, f"{title}: {name}", rows, lambda: moves.write(bed, chosen, topic))
        _check_count(bed.lab, f"trunkline.topic_{number}", rows)
        return rate

    def theirs(warm_up: bool = False) -> float:
        jdbc.make_sink(bed.lab)
        rows = sizes.write // 10 if warm_up else sizes.write
        chosen = (frame.limit(rows) if warm_up else frame).selectExpr("cast(key as string) as key", "value")
        rate = _rate(bed, f"{title}: {jdbc.NAME}", rows, lambda: jdbc.write(bed, chosen))
        _check_count(bed.lab, jdbc.SINK, rows)
        return rate

    contestants: dict[str, Callable[..., float]] = {
        _OURS: partial(ours, _OURS, 1),
        spread: partial(ours, spread, _PARTITIONS),
        **_with_jdbc(theirs),
    }
    for contestant in contestants.values():
        contestant(warm_up=True)
    bed.cpu.clear()
    measured = interleave(title, "rows/s", contestants, rounds=plan.rounds)
    note = f"{sizes.write:,} rows"
    return _compared(bed, title, measured, goals={jdbc.NAME: at_least(1)}, note=note), whole[1]


def _topic_to_topic(bed: Bed, plan: Plan, sizes: Sizes, source: str) -> list[Row]:
    title, name = "spark, topic to topic", "exactly once"

    def stream() -> float:
        topic, number = bed.new_topic("spark-copied")
        rate = _stream_rate(bed, title, source, sizes.write, target=topic)
        _check_count(bed.lab, f"trunkline.topic_{number}", sizes.write)
        return rate

    measured = interleave(title, "rows/s", {name: stream}, rounds=plan.rounds)
    note = f"{_per_batch(sizes.write)}; {middle(bed.cpu[title])}"
    rates = measured[name]
    return [figure(title, name, median(rates), "rows/s", payload=PAYLOAD, rounds=rates, goal=at_least(50_000), note=note)]


def _check_count(lab: Lab, table: str, rows: int) -> None:
    found = int(lab.value(f"select count(*) from {table}"))
    if found != rows:
        raise RuntimeError(f"{table} must have {rows} rows, got {found}")


# Starting


def _start(starts: Starts, plan: Plan) -> list[Row]:
    title = "spark, start to first row"
    first, later, default = "session helper, first start", "session helper", "default session"
    contestants = {first: starts.cold, default: starts.default}
    if failure := starts.prepare():
        say(f"  spark: skipping the start with a class archive: trunkline.spark.session.class_cache failed: {failure}")
    else:
        contestants = {later: starts.warmed, **contestants}
    measured = interleave(title, "s", contestants, rounds=min(plan.rounds, _STARTS))
    notes = {
        later: "with the class archive of the first start",
        first: "without class archive",
        default: "SparkSession.builder.getOrCreate()",
    }
    return [
        figure(
            title, name, median(seconds), "s", rounds=seconds, goal=at_most(8) if name == later else None, note=notes[name]
        )
        for name, seconds in measured.items()
    ]


# Helpers


def _with_jdbc(contestant: T) -> dict[str, T]:
    return {jdbc.NAME: contestant} if JAR.exists() else {}


def _calm(lab: Lab, number: int) -> None:
    lab.calm(f"trunkline.topic_{int(number)}", "trunkline.ticks")


def _warm_up(frames: Iterable[Callable[[], DataFrame]]) -> None:
    """Run once without measuring, so that Spark compiles the query and starts its workers."""
    for frame in frames:
        moves.to_nowhere(frame())


def _rate(bed: Bed, name: str, rows: int, action: Callable[[], object]) -> float:
    return rows / bed.timed(name, action)


def _parquet_rate(bed: Bed, name: str, rows: int, frame: Callable[[], DataFrame]) -> float:
    with bed.output() as path:
        rate = _rate(bed, name, rows, lambda: frame().write.parquet(path))
        found = bed.spark.read.parquet(path).count()
    if found != rows:
        raise RuntimeError(f"{name}: the files must have {rows} rows, got {found}")
    return rate


def _stream_rate(bed: Bed, name: str, source: str, rows: int, target: str | None = None) -> float:
    rates: list[float] = []
    per_batch = rows // _BATCHES
    bed.timed(name, lambda: rates.append(moves.sustained(bed, source, rows=rows, per_batch=per_batch, target=target)))
    return rates[0]


def _per_batch(rows: int) -> str:
    return f"{rows // _BATCHES:,} rows per batch, without the first batch"


def _compared(
    bed: Bed,
    title: str,
    measured: Mapping[str, Sequence[float]],
    *,
    goals: Mapping[str, Goal],
    note: str,
    measured_as: str | None = None,
) -> list[Row]:
    """Return rows with each contestant's CPU time in the note."""
    notes = {name: str(middle(bed.cpu[f"{measured_as or title}: {name}"])) for name in measured}
    first = next(iter(measured))
    notes[first] = f"{note}; {notes[first]}"
    return compare(title, PAYLOAD, "rows/s", measured, goals=goals, notes=notes)
