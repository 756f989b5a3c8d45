"""`python -m bench`: run the benchmarks, print a table and write a JSON file."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path

import click
import msgspec

from bench import machine, report
from bench.lab import open_lab
from bench.plan import Plan
from bench.rounds import say
from bench.rows import Row
from bench.workloads import WORKLOADS


def _names(_: click.Context, __: click.Parameter, value: str | None) -> list[str]:
    names = list(WORKLOADS) if value is None else [name.strip() for name in value.split(",") if name.strip()]
    unknown = [name for name in names if name not in WORKLOADS]
    if unknown or not names:
        problem = f"unknown workload {', '.join(unknown)}" if unknown else "no workload given"
        raise click.BadParameter(f"{problem}; choose from {', '.join(WORKLOADS)}")
    return names


@click.command("bench")
@click.option("--quick", is_flag=True, help="Small sizes: backlog of 1 million, xmin held for 1 minute.")
@click.option("--only", "names", metavar="NAME,...", callback=_names, help="Run only these workloads.")
@click.option("--rounds", type=click.IntRange(1), help="Rounds per contestant [5; 3 with --quick].")
@click.option("--seconds", type=click.FloatRange(1), help="Seconds per measurement [8; 3 with --quick].")
@click.option("--minutes", type=click.FloatRange(0.05), help="Minutes to hold xmin [10; 1 with --quick].")
@click.option(
    "--deep", type=click.IntRange(10_000), help="Messages in the deep backlog [10 million; 1 million with --quick]."
)
@click.option("--samples", type=click.IntRange(20), help="Samples per latency [300; 100 with --quick].")
@click.option("--disconnects", type=click.IntRange(1), help="Forced disconnects of a listener [200; 20 with --quick].")
@click.option(
    "--slower-flush",
    metavar="MS",
    type=click.FloatRange(0, 100),
    default=0,
    help="Milliseconds to add to each WAL flush.",
)
@click.option("-o", "--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--save", type=click.Path(dir_okay=False, path_type=Path), help="File for the JSON document.")
def main(
    quick: bool,
    names: list[str],
    rounds: int | None,
    seconds: float | None,
    minutes: float | None,
    deep: int | None,
    samples: int | None,
    disconnects: int | None,
    slower_flush: float,
    output: str,
    save: Path | None,
) -> None:
    """Compare Trunkline with a SKIP LOCKED table, a counter-row log, plain tables and other queues on one Postgres.

    Runs of all workloads are saved in bench/results. Runs with --only are saved only with --save.
    """
    plan = Plan(
        quick=quick,
        rounds=rounds or (3 if quick else 5),
        seconds=seconds or (3 if quick else 8),
        minutes=minutes or (1 if quick else 10),
        deep=deep or (1_000_000 if quick else 10_000_000),
        samples=samples or (100 if quick else 300),
        disconnects=disconnects or (20 if quick else 200),
    )
    rows: list[Row] = []
    began = time.monotonic()
    with open_lab(slower_flush_ms=slower_flush) as lab:
        facts = machine.facts(lab.conn, lab.directory)
        for name in names:
            say(name)
            rows += WORKLOADS[name](lab, plan)
        facts["load_average_at_end"] = os.getloadavg()[0]
    say(f"took {time.monotonic() - began:.0f} s")
    content = report.document(plan, facts, rows)
    if output == "json":
        sys.stdout.write(msgspec.json.format(msgspec.json.encode(content), indent=2).decode() + "\n")
    else:
        report.print_table(facts, rows)
    path = save or (report.default_file(plan) if names == list(WORKLOADS) else None)
    if path is not None:
        report.save(content, path)
        say(f"JSON: {path}")


if __name__ == "__main__":
    main()
