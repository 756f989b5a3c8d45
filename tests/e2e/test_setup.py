"""From nothing to a usable system: `trunkline up`, its tours, a clean stop, and the data after it."""

from __future__ import annotations

import json
import os
import pwd
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import sysconfig
import threading
import time
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import psutil
import psycopg
import pytest

from tests.support.waiting import wait_until
from trunkline.cli.framework.ports import reserved_port
from trunkline.embedded.postmaster import find_processes
from trunkline.embedded.server import EmbeddedServer

ROOT = Path(__file__).parents[2]
COMMAND = [str(Path(sys.executable).parent / "trunkline")]
# The promise is 60 seconds after downloads; a hanging start fails here.
START_LIMIT = 60


class Up:
    """A running `trunkline up`, with what it has printed so far."""

    def __init__(
        self,
        data: Path,
        *flags: str,
        user: str | None = None,
        command: list[str] = COMMAND,
        path: str = "",
        port: int | None = 0,
    ) -> None:
        self.data = data
        environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1", "PYTHONPATH": path}
        if data.name != ".trunkline":
            environment["TRUNKLINE_DATA"] = str(data)
        self.process = subprocess.Popen(
            [*command, "up", *(["--no-http"] if port is None else ["--port", str(port)]), *flags],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env=environment,
            cwd=data.parent,
            user=user,
        )
        self.output = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()
        if not self._ready.wait(START_LIMIT) or "Ctrl-C stops." not in self.output:
            self.process.kill()
            raise AssertionError(f"not up within {START_LIMIT} s:\n{self.output}")

    def _read(self) -> None:
        assert self.process.stdout
        for line in self.process.stdout:
            self.output += line
            if line.startswith("Ctrl-C stops."):
                self._ready.set()
        self._ready.set()

    @property
    def url(self) -> str:
        """Return the address of its HTTP service."""
        found = re.search(r"HTTP is served on (http://127\.0\.0\.1:\d+)", self.output)
        assert found is not None, self.output
        return found[1]

    def stop(self, signum: int = signal.SIGINT) -> int:
        self.process.send_signal(signum)
        code = self.process.wait(60)
        self._reader.join(10)
        return code


@pytest.fixture
def data(tmp_path: Path) -> Iterator[Path]:
    directory = tmp_path / "data"
    yield directory
    for pid in find_processes(directory / "pgdata"):
        os.kill(pid, signal.SIGKILL)


def run(*args: str, cwd: Path) -> subprocess.CompletedProcess[str]:
    environment = {"PATH": os.environ["PATH"]}
    return subprocess.run([*COMMAND, *args], capture_output=True, text=True, env=environment, cwd=cwd, timeout=60)


def test_up_gives_a_usable_system_and_ctrl_c_keeps_the_data(data: Path) -> None:
    with reserved_port("127.0.0.1", 0) as metrics_port:
        up = Up(data, "--metrics-port", str(metrics_port))
    with urllib.request.urlopen(f"http://127.0.0.1:{metrics_port}/metrics", timeout=30) as metrics:
        assert b"http_request_duration_seconds" in metrics.read()
    url = EmbeddedServer(data).connect()
    with psycopg.connect(url, autocommit=True) as conn:
        tour = [line.strip() for line in up.output.splitlines() if line.startswith("  select ")]
        assert len(tour) >= 6
        receipt = ""
        for statement in tour:
            cursor = conn.execute(statement.replace("<receipt>", receipt).encode())
            if "trunkline.claim" in statement:
                receipt = cursor.fetchall()[0][0]
            elif "trunkline.ack" in statement:
                assert cursor.fetchall()[0][2] == "done"
    commands = [line.strip() for line in up.output.splitlines() if line.startswith("  trunkline ")]
    assert commands[-1] == "trunkline top"
    for line in commands[:-1]:
        done = run(*shlex.split(line)[1:], "--data", str(data), cwd=data.parent)
        assert done.returncode == 0, (line, done.stderr)
    assert '"to"' in done.stdout
    walk_over_http([line.strip() for line in up.output.splitlines() if line.startswith("  curl ")])
    healthy = run("doctor", "--data", str(data), "-o", "json", cwd=data.parent)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    again = run("migrate", "--data", str(data), "-o", "json", cwd=data.parent)
    assert json.loads(again.stdout)["applied"] == []
    assert up.stop() == 0
    assert "the data stays" in up.output
    assert "secret" not in up.output
    assert not find_processes(data / "pgdata")
    assert not answers(up.url)

    second = Up(data, port=None)
    assert "HTTP" not in second.output
    with psycopg.connect(EmbeddedServer(data).connect()) as conn:
        assert conn.execute("select count(*) from trunkline.read('tour', 0, 1)").fetchone() == (1,)
    assert second.stop(signal.SIGTERM) == 0
    assert not find_processes(data / "pgdata")


def walk_over_http(tour: list[str]) -> None:
    receipt = ""
    for command in tour:
        command = command.replace("curl ", "curl -sS --fail-with-body --noproxy '*' ").replace("<receipt>", receipt)
        answer = json.loads(subprocess.check_output(command, shell=True, text=True, timeout=30))
        if "/claims" in command:
            receipt = answer["deliveries"][0]["receipt"]
            assert answer["deliveries"][0]["payload"] == {"to": "a@example.com"}
    assert [row["result"] for row in answer["results"]] == ["done"]


def answers(url: str) -> bool:
    with socket.socket() as client:
        return client.connect_ex(("127.0.0.1", int(url.rpartition(":")[2]))) == 0


def test_an_idle_up_is_small(data: Path) -> None:
    """One process serves HTTP, and the dispatcher is loaded with the first endpoint."""
    up = Up(data, "--push-allow", "127.0.0.0/8")
    tree = psutil.Process(up.process.pid)
    python = [child for child in tree.children(recursive=True) if "postgres" not in child.name()]
    assert len(python) == 1 and "serve" in python[0].cmdline()
    used = sum(process.memory_full_info().pss for process in [tree, *tree.children(recursive=True)])
    # 150 MB measured with compiled bytecode, which this environment may lack
    assert used < 175 * 1024**2
    assert not dispatching(tree)

    with psycopg.connect(EmbeddedServer(data).connect(), autocommit=True) as conn:
        conn.execute("select trunkline.create_endpoint('hooks', 'http://127.0.0.1:9/')")
        wait_until(lambda: dispatching(tree))
        wait_until(lambda: conn.execute("select from trunkline.dispatchers").fetchone() is not None)
    assert up.stop() == 0


def dispatching(process: psutil.Process) -> bool:
    return any("aiohttp" in mapped.path for mapped in process.memory_maps())


def test_a_request_that_waits_does_not_delay_the_end_of_up(data: Path) -> None:
    up = Up(data)
    post(f"{up.url}/v1/queues?ensure=true", {"name": "q"})
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(post, f"{up.url}/v1/queues/q/claims", {"wait": 30})
        line = re.escape('handler="/v1/queues/{queue}/claims"') + ".*} 1"
        wait_until(lambda: re.search(f"^http_requests_inflight.*{line}", get(f"{up.url}/metrics"), re.MULTILINE))
        start = time.monotonic()
        assert up.stop() == 0
        assert waiting.result(10) == {"deliveries": []}
        assert time.monotonic() - start < 25, "the request waited for its 30 s"


def post(url: str, body: object) -> object:
    request = urllib.request.Request(url, json.dumps(body).encode(), {"content-type": "application/json"})
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.loads(response.read())


def get(url: str) -> str:
    with urllib.request.urlopen(url, timeout=60) as response:
        text: str = response.read().decode()
        return text


def test_a_killed_up_leaves_no_server_on_the_port_and_a_taken_port_stops_before_anything_starts(data: Path) -> None:
    killed = Up(data)
    port = int(killed.url.rpartition(":")[2])
    killed.process.kill()
    killed.process.wait(60)
    # Postgres has outlived it and is adopted; the HTTP service has not, or the port would be taken
    second = Up(data, port=port)
    assert answers(second.url)
    refused = run("up", "--data", "other", "--port", str(port), cwd=data.parent)
    assert refused.returncode == 2
    assert f"port {port}" in refused.stderr and "--port" in refused.stderr
    assert not (data.parent / "other").exists()
    kill_http_service(second)
    assert second.stop(signal.SIGTERM) == 0
    assert not answers(second.url)


def kill_http_service(up: Up) -> None:
    service = [child for child in psutil.Process(up.process.pid).children() if "serve" in child.cmdline()]
    assert len(service) == 1
    workers = service[0].children()
    service[0].kill()
    _, left = psutil.wait_procs([*service, *workers], timeout=30)
    assert not left, "a worker has outlived its server"
    for _ in range(600):
        if "restarting it" in up.output and answers(up.url):
            return
        time.sleep(0.05)
    raise AssertionError(up.output)


def test_up_starts_again_with_the_url_that_it_printed(tmp_path: Path) -> None:
    """The tutorial writes it into `.env`, where every command finds it."""
    data = tmp_path / ".trunkline"
    try:
        server = EmbeddedServer(data)
        server.start()
        url = server.tcp_url
        server.stop()
        (tmp_path / ".env").write_text(f"TRUNKLINE_DATABASE_URL={url}\n")
        (tmp_path / ".env").chmod(0o600)
        stopped = run("queue", "list", cwd=tmp_path)
        assert stopped.returncode == 6 and "Start it with trunkline up." in stopped.stderr
        up = Up(data, port=None)
        assert run("queue", "list", cwd=tmp_path).returncode == 0
        # a port that is no longer right
        old_port = f":{server.port}/"
        (tmp_path / ".env").write_text(f"TRUNKLINE_DATABASE_URL={url.replace(old_port, ':1/')}\n")
        assert run("queue", "list", cwd=tmp_path).returncode == 0
        second = Up(data, port=None)
        assert "Using the Postgres of" in second.output and "correct TRUNKLINE_DATABASE_URL (.env line 1)" in second.output
        assert second.stop() == up.stop() == 0
    finally:
        for pid in find_processes(data / "pgdata"):
            os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("command", [("up",), ("queue", "list"), ("migrate",), ("migrate", "--dry-run"), ("doctor",)])
def test_a_stale_url_is_named_with_its_source(tmp_path: Path, command: tuple[str, ...]) -> None:
    (tmp_path / ".env").write_text("TRUNKLINE_DATABASE_URL=postgresql://a@127.0.0.1:1/db\n")
    failed = run(*command, cwd=tmp_path)
    assert failed.returncode == 6
    assert "TRUNKLINE_DATABASE_URL (.env line 1)" in failed.stderr and "Connection refused" in failed.stderr
    assert "remove the setting" in failed.stderr
    flag = run("queue", "list", "--data", "here", cwd=tmp_path)
    assert flag.returncode == 2 and "here has no embedded server" in flag.stderr


def test_data_of_an_earlier_make_up_is_mentioned(tmp_path: Path) -> None:
    (tmp_path / ".data" / "pgdata").mkdir(parents=True)
    failed = run("queue", "list", cwd=tmp_path)
    assert failed.returncode == 2 and "--data .data" in failed.stderr


def test_two_ups_on_one_directory_do_not_harm_each_other(data: Path) -> None:
    first, second = Up(data, port=None), Up(data, port=None)
    assert "Using the Postgres of" in second.output
    assert second.stop() == 0
    with psycopg.connect(EmbeddedServer(data).connect(), autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('t')")
    assert first.stop() == 0


def test_up_runs_upkeep(data: Path) -> None:
    up = Up(data, port=None)
    with psycopg.connect(EmbeddedServer(data).connect(), autocommit=True) as conn:
        conn.execute("select trunkline.create_topic('t')")
        conn.execute("select trunkline.publish('t', '1', p_delay => '10 milliseconds')")
        for _ in range(300):
            if conn.execute("select count(*) from trunkline.ticks").fetchone() == (1,):
                break
            conn.execute("select pg_sleep(0.1)")
        else:
            raise AssertionError("nobody released the message and gave it an offset")
    assert up.stop() == 0


def python_for(user: str, path: str) -> str:
    """An interpreter that this user may run and that finds our packages: ours may be in a private directory."""
    for program in (sys.executable, f"/usr/bin/python3.{sys.version_info.minor}"):
        try:
            subprocess.run(
                [program, "-c", "import trunkline, psycopg, click"],
                user=user,
                env={"PYTHONPATH": path},
                cwd="/",
                capture_output=True,
                check=True,
                timeout=30,
            )
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    pytest.skip(f"{user} can run no Python {sys.version_info.major}.{sys.version_info.minor} here")


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become somebody else; then every other test here is that proof")
def test_up_works_for_a_user_without_rights() -> None:
    user = pwd.getpwnam("nobody")
    path = os.pathsep.join([str(ROOT / "src"), sysconfig.get_path("purelib")])
    command = [python_for("nobody", path), "-c", "from trunkline.cli.main import main; main()"]
    home = Path(subprocess.check_output(["mktemp", "-d", "/tmp/tl-nobody-XXXXXX"], text=True).strip())
    os.chown(home, user.pw_uid, user.pw_gid)
    try:
        up = Up(home / "data", user="nobody", command=command, path=path)
        assert (home / "data" / "pgdata").stat().st_uid == user.pw_uid
        assert up.stop() == 0
        assert "the data stays" in up.output
    finally:
        for pid in find_processes(home / "data" / "pgdata"):
            os.kill(pid, signal.SIGKILL)
        shutil.rmtree(home, ignore_errors=True)


def test_make_offers_what_the_readme_names() -> None:
    listed = subprocess.run(["make", "-s", "help"], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True).stdout
    targets = set(re.findall(r"^(\w+) ", listed, flags=re.MULTILINE))
    assert {"setup", "up", "test", "check", "bench", "chaos"} <= targets
    for target in ("up", "test", "check", "bench", "chaos"):
        planned = subprocess.run(
            ["make", "-n", target], cwd=ROOT, capture_output=True, text=True, timeout=30, check=True
        ).stdout
        # every other command looks into the default directory too
        assert "--data" not in planned


def test_without_a_database_the_command_says_what_to_do(tmp_path: Path) -> None:
    for command in ("migrate", "doctor"):
        failed = run(command, cwd=tmp_path)
        assert failed.returncode == 2
        assert "TRUNKLINE_DATABASE_URL" in failed.stderr
