"""The faults: kill -9 of Postgres, of consumers and of HTTP servers, and pauses that outlast their leases."""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass

from tests.chaos.actors import Actor, Stage
from tests.chaos.history import Recorder
from tests.chaos.services import Services
from trunkline.embedded.postmaster import find_processes
from trunkline.embedded.server import EmbeddedServer


@dataclass(frozen=True)
class Faults:
    """Number of faults by kind. Each crash of Postgres additionally kills the upkeep process."""

    pg_kills: int = 0
    consumer_kills: int = 0
    pauses: int = 0
    server_kills: int = 0
    worker_kills: int = 0
    server_stops: int = 0

    def counts(self) -> dict[str, int]:
        """By the name of the fault; those that do not happen are left out."""
        counts = {
            "crash": self.pg_kills,
            "kill": self.consumer_kills,
            "pause": self.pauses,
            "server": self.server_kills,
            "worker": self.worker_kills,
            "stop": self.server_stops,
        }
        return {name: count for name, count in counts.items() if count}

    def shuffled(self, source: random.Random) -> list[str]:
        names = [name for name, count in self.counts().items() for _ in range(count)]
        source.shuffle(names)
        return names


def crash(server: EmbeddedServer, recorder: Recorder) -> None:
    """Kill every process of the server at once, and start it again."""
    before = time.time()
    pids = [server.postmaster_pid, *find_processes(server.pgdata)]
    for pid in dict.fromkeys(pids):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)
    recorder.note("crash", before=before, after=time.time())
    while server.alive():
        time.sleep(0.005)  # a killed process is still listed for a moment, and would be taken for a running server
    server.start()


class Nemesis:
    """Run one fault at a time; pauses end in the background."""

    def __init__(
        self,
        server: EmbeddedServer,
        stage: Stage,
        recorder: Recorder,
        source: random.Random,
        pause: float,
        services: Services | None = None,
    ) -> None:
        self.done: Counter[str] = Counter()
        self._server = server
        self._stage = stage
        self._recorder = recorder
        self._random = source
        self._pause = pause
        self._services = services
        self._paused: list[tuple[float, Actor]] = []

    def strike(self, fault: str, victims: list[Actor], upkeep: Actor | None) -> None:
        if fault == "crash":
            crash(self._server, self._recorder)
            if upkeep is not None:
                self._kill(upkeep)
        elif fault == "kill":
            self._kill(self._random.choice(self._awake(victims)))
        elif fault == "pause":
            victim = self._random.choice(self._awake(victims))
            os.kill(victim.process.pid, signal.SIGSTOP)
            self._recorder.note("pause", victim=victim.name)
            self._paused.append((time.monotonic() + self._pause, victim))
        else:
            self._strike_services(fault)
        self.done[fault] += 1

    def _awake(self, victims: list[Actor]) -> list[Actor]:
        """Return the victims that are not paused; when all are, wait for the first pause to end."""
        assert victims, "the workload has no consumer to kill or pause"
        while not (awake := [actor for actor in victims if actor not in [paused for _, paused in self._paused]]):
            time.sleep(0.02)
            self.wake()
        return awake

    def _strike_services(self, fault: str) -> None:
        assert self._services is not None, f"there is no HTTP server for {fault}"
        self._recorder.note(fault)
        if fault == "server":
            self._services.kill(self._random)
        elif fault == "worker":
            self._services.kill_worker()
        elif fault == "stop":
            self._services.stop(self._random)

    def wake(self, *, everybody: bool = False) -> None:
        """Resume the processes whose pause is over."""
        if self._services is not None:
            self._services.look()
        for until, actor in list(self._paused):
            if everybody or time.monotonic() >= until:
                os.kill(actor.process.pid, signal.SIGCONT)
                self._paused.remove((until, actor))

    def heal(self) -> None:
        """Wait for the pauses to run out, so that each outlasts its lease."""
        while self._paused:
            self.wake()
            time.sleep(0.05)

    def _kill(self, victim: Actor) -> None:
        victim.process.kill()
        self._recorder.note("kill", victim=victim.name)
        self._stage.replace(victim)
