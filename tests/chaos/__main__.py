"""The long run: `make chaos`, or `python -m tests.chaos --messages 1000000 --pg-kills 50`."""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path

import psycopg
from psycopg.conninfo import make_conninfo

from tests.chaos.nemesis import Faults
from tests.chaos.report import Report
from tests.chaos.run import Plan, run
from tests.chaos.workloads import WORKLOADS
from trunkline.embedded.server import EmbeddedServer

# What two cores do with everything recorded; more only makes the queues longer.
_MESSAGES_PER_SECOND = 700
_HTTP_MESSAGES_PER_SECOND = 250


def main() -> int:
    options = _options()
    names = list(WORKLOADS) if options.workload == "all" else [options.workload]
    total = Report()
    home = Path(tempfile.mkdtemp(prefix="tl-chaos-pg-", dir="/tmp"))
    begun = time.monotonic()
    print(f"seed {options.seed}")
    with EmbeddedServer(home / "data") as server:
        for number, name in enumerate(names):
            messages = _share(options.messages, number, len(names))
            faults = Faults(
                _share(options.pg_kills, number, len(names)),
                _share(options.consumer_kills, number, len(names)),
                _share(options.pauses, number, len(names)),
            )
            if WORKLOADS[name].http:
                faults = replace(
                    faults,
                    server_kills=options.server_kills,
                    worker_kills=options.server_kills // 2,
                    server_stops=options.server_kills // 2,
                )
            with psycopg.connect(server.superuser_url, autocommit=True) as conn:
                conn.execute(f"create database chaos_{name} owner trunkline".encode())
            url = make_conninfo(server.url, dbname=f"chaos_{name}")
            rate = _HTTP_MESSAGES_PER_SECOND if WORKLOADS[name].http else _MESSAGES_PER_SECOND
            seconds = options.seconds / len(names) if options.seconds else max(20.0, messages / rate)
            plan = Plan(WORKLOADS[name], messages, faults, seconds, options.seed, say=lambda text: print(text, flush=True))
            outcome = run(plan, server, url)
            total.merge(outcome.report)
            if outcome.report.ok:
                shutil.rmtree(outcome.directory)
            else:
                print(f"{name}: VIOLATIONS, history kept in {outcome.directory}")
            print(f"{name}: {outcome.seconds:.0f} s, faults {outcome.faults}\n{outcome.report.table()}", flush=True)
    shutil.rmtree(home, ignore_errors=True)
    print(f"\nall workloads: seed {options.seed}, {time.monotonic() - begun:.0f} s\n{total.table()}")
    return 0 if total.ok else 1


def _share(count: int, number: int, parts: int) -> int:
    return count // parts + (number < count % parts)


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m tests.chaos", description=__doc__)
    parser.add_argument("--messages", type=int, default=1_000_000)
    parser.add_argument("--pg-kills", type=int, default=50)
    parser.add_argument("--consumer-kills", type=int, default=200)
    parser.add_argument("--pauses", type=int, default=100)
    parser.add_argument("--server-kills", type=int, default=40, help="of the HTTP servers; half as many workers and stops")
    parser.add_argument("--seconds", type=float, default=0, help="length of the load; default: by the number of messages")
    parser.add_argument("--seed", type=int, default=int.from_bytes(os.urandom(4), "big"))
    parser.add_argument("--workload", choices=[*WORKLOADS, "all"], default="all")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
