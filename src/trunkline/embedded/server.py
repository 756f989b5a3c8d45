"""A private Postgres server in a data directory, run from the programs of a wheel.

The server listens on loopback and on a socket that only its account (and root) can reach. Both require a password, and
`fsync` stays on. The directory stays consistent if any process is killed with kill -9 at any time:

    lock           held (flock) by the process that owns the server; other processes attach to it
    password       of role trunkline, which owns the database and is not a superuser; readable only by its owner
    superuser-password   of role trunkline_superuser, which only creates that role; readable only by its owner
    port           the port of the last start, reused if it is free
    pgdata/        the cluster; created by a rename, so it is complete or absent
    postgres.log   the server log
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import secrets
import shutil
import signal
import socket
import subprocess  # nosec B404
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from typing import IO, Self
from urllib.parse import quote

from trunkline.embedded import install, ownership
from trunkline.embedded.postmaster import Postmaster, find_postmaster, find_processes
from trunkline.errors import EmbeddedServerError

ROLE = "trunkline"
SUPERUSER = "trunkline_superuser"
DATABASE = "trunkline"
_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOG_LIMIT = 16 * 1024 * 1024
_ATTEMPTS = 5
_ATTEMPT_PAUSE = 0.3
_STATIC = {
    "max_connections": "200",
    "shared_buffers": "128MB",
    "max_prepared_transactions": "20",
    "log_checkpoints": "off",  # one line every five minutes would fill most of the log
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_log = logging.getLogger(__name__)


class EmbeddedServer:
    """One embedded server. `start` is idempotent across processes: a second process attaches."""

    def __init__(
        self,
        data_dir: Path | str,
        port: int | None = None,
        *,
        version: int = 18,
        timeout: timedelta = timedelta(seconds=60),
    ) -> None:
        self.data_dir = Path(data_dir).absolute()
        self.pgdata = self.data_dir / "pgdata"
        self.log_file = self.data_dir / "postgres.log"
        self.password_file = self.data_dir / "password"
        self.superuser_password_file = self.data_dir / "superuser-password"
        self.version = version
        self._wanted_port = port
        self._timeout = timeout
        self._lock: IO[str] | None = None
        self._child: subprocess.Popen[bytes] | None = None
        self._running: Postmaster | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.stop()

    @property
    def owned(self) -> bool:
        """True if this object owns the server and stops it. False if it attached to the server of another process."""
        return self._lock is not None

    @property
    def postmaster_pid(self) -> int:
        return self._known().pid

    @property
    def port(self) -> int:
        return self._known().port

    @property
    def socket_dir(self) -> Path:
        return self._known().socket_dir

    @property
    def url(self) -> str:
        """Connection URL over the private socket."""
        return self._socket_url(ROLE, self._password())

    @property
    def superuser_url(self) -> str:
        """Connection URL of the superuser, to create extensions, databases and roles."""
        return self._socket_url(SUPERUSER, _read_password(self.superuser_password_file))

    @property
    def tcp_url(self) -> str:
        """Connection URL over loopback, for programs that cannot use a socket."""
        return f"postgresql://{ROLE}:{self._password()}@127.0.0.1:{self.port}/{DATABASE}"

    def alive(self) -> bool:
        """Return whether the server runs. Reaps a dead child, so that it can be restarted."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        return find_postmaster(self.pgdata) is not None

    def start(self) -> str:
        """Start the server and return its URL.

        If it already runs, adopt it if its owner has died, or attach to the process that owns it.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        _make_data_dir(self.data_dir)
        while not self._take_lock():
            # The owner may still be starting or be about to exit.
            postmaster = find_postmaster(self.pgdata)
            if postmaster and postmaster.ready and postmaster.responds():
                self._running = postmaster
                return self.url
            self._pause(deadline)
        try:
            self._running = self._adopt(deadline) or self._launch(deadline)
            self._separate_superuser()
        except BaseException:
            if self._child is not None:
                with suppress(EmbeddedServerError):
                    self._shut_down()
            self._release()
            raise
        return self.url

    def connect(self) -> str:
        """Return the URL of the server that already runs on this directory. Never starts one."""
        postmaster = find_postmaster(self.pgdata)
        if postmaster is None or not postmaster.ready:
            raise EmbeddedServerError(f"no embedded Postgres runs on {self.data_dir}", hint="Start it with trunkline up.")
        self._running = postmaster
        return self.url

    def issued(self, url: str) -> bool:
        """Return whether this URL belongs to this server, even if it is stopped or its port has changed.

        The server's random password identifies it.
        """
        from psycopg.conninfo import conninfo_to_dict

        parts = conninfo_to_dict(url)
        host = str(parts.get("host") or parts.get("hostaddr") or "")
        local = host in _LOOPBACK or host.startswith("/")
        if not local or (parts.get("user"), parts.get("dbname")) != (ROLE, DATABASE):
            return False
        try:
            return parts.get("password") == self._password()
        except EmbeddedServerError:
            return False

    def stop(self) -> None:
        """Shut the server down if we own it (a `fast` shutdown: open transactions are rolled back)."""
        if self._lock is None:
            return
        try:
            self._shut_down()
            if self._running is not None:
                with suppress(OSError):
                    self._running.socket_dir.rmdir()
        finally:
            self._release()

    def _shut_down(self) -> None:
        for signum, seconds in ((signal.SIGINT, 30), (signal.SIGQUIT, 10)):
            postmaster = find_postmaster(self.pgdata)
            if postmaster is None:
                break
            with suppress(ProcessLookupError):
                os.kill(postmaster.pid, signum)
            end = time.monotonic() + seconds
            # The pid file is removed first; the processes and the socket follow.
            while time.monotonic() < end and (self.alive() or find_processes(self.pgdata)):
                time.sleep(0.02)
        if self.alive():
            raise EmbeddedServerError(
                f"the embedded Postgres (process {self.postmaster_pid}) did not stop",
                detail=self._log_tail(),
            )

    def _known(self) -> Postmaster:
        if self._running is None:
            raise EmbeddedServerError("the embedded Postgres was not started", hint="Call start() first.")
        return self._running

    def _password(self) -> str:
        return _read_password(self.password_file)

    def _socket_url(self, role: str, password: str) -> str:
        host = quote(str(self.socket_dir), safe="")
        return f"postgresql://{role}:{password}@/{DATABASE}?host={host}&port={self.port}"

    def _separate_superuser(self) -> None:
        """Upgrade a directory of an earlier release, in which role trunkline is still a superuser."""
        pending = self.data_dir / "superuser-password.pending"
        if self.superuser_password_file.exists():
            return
        superuser = ownership.needs_separation(self.url)
        if not superuser and not pending.exists():
            return  # already separated; the password file was lost
        password = _ensure_password(pending)
        if superuser:
            ownership.swap_roles(self.url, superuser=SUPERUSER, password=password)
            _log.info("removed superuser rights from role %s; the superuser is now %s", ROLE, SUPERUSER)
        # a start that was killed here continues with the same password
        ownership.hand_over(self._socket_url(SUPERUSER, password), ROLE)
        pending.replace(self.superuser_password_file)
        _sync_directory(self.data_dir)

    def _take_lock(self) -> bool:
        if self._lock is not None:
            return True
        try:
            # Owner only: a lock needs no write permission, so any user that can open the file could block us.
            descriptor = os.open(self.data_dir / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            file = os.fdopen(descriptor, "a")
            if os.fstat(descriptor).st_mode & 0o077:
                with suppress(PermissionError):
                    os.fchmod(descriptor, 0o600)
        except OSError as exc:
            raise EmbeddedServerError(
                f"cannot use {self.data_dir}: {exc.strerror}",
                hint="Run as the account that owns it, or choose another directory with --data.",
            ) from exc
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            file.close()
            return False
        self._lock = file
        return True

    def _release(self) -> None:
        if self._lock is not None:
            self._lock.close()
            self._lock = None

    def _adopt(self, deadline: float) -> Postmaster | None:
        """Take over a running postmaster whose owner was killed."""
        while postmaster := find_postmaster(self.pgdata):
            # One that was just killed may still be in /proc, but it no longer responds.
            if postmaster.ready and postmaster.responds():
                _log.info("adopted the running Postgres, process %s", postmaster.pid)
                return postmaster
            self._pause(deadline)
        return None

    def _launch(self, deadline: float) -> Postmaster:
        account = install.choose_account(self.pgdata)
        bin_dir = install.programs(self.version, account)
        if not self.pgdata.exists():
            self._initialise(bin_dir, account)
        self._check_version()
        self._password()  # fail now: without the file, no client could connect
        for _ in range(_ATTEMPTS):
            self._remove_leftovers(deadline)
            port = self._choose_port()
            postmaster = self._spawn(bin_dir, account, port, deadline)
            if postmaster is not None:
                (self.data_dir / "port").write_text(f"{port}\n")
                return postmaster
            # It exited. Another program may have taken the port since the check, or a process of a killed server was
            # still exiting. Both are temporary, so retry; a permanent cause fails again.
            if self._wanted_port is not None and not _is_free(port):
                break
            time.sleep(_ATTEMPT_PAUSE)
        raise EmbeddedServerError(
            "the embedded Postgres did not start", hint=f"See {self.log_file}.", detail=self._log_tail()
        )

    def _spawn(self, bin_dir: Path, account: install.Account, port: int, deadline: float) -> Postmaster | None:
        """Start the postmaster and wait until it is ready. Returns None if it exited."""
        sockets = _make_socket_dir(self.data_dir, account)
        dynamic = {
            "port": str(port),
            "listen_addresses": "127.0.0.1",
            "unix_socket_directories": str(sockets),
            "unix_socket_permissions": "0700",
            "fsync": "on",
            "full_page_writes": "on",
        }
        options = [part for name, value in dynamic.items() for part in ("-c", f"{name}={value}")]
        with _reachable(self.pgdata, account) as (path, fds), self._open_log() as log:
            # Separate session: Ctrl-C at our terminal must not reach the server before we have drained.
            child = subprocess.Popen(  # noqa: S603  # nosec B603
                [str(bin_dir / "postgres"), "-D", path, *options],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
                pass_fds=fds,
                **account.popen(),
            )
        self._child = child
        while child.poll() is None:
            postmaster = find_postmaster(self.pgdata)
            if postmaster and postmaster.pid == child.pid and postmaster.ready:
                return postmaster
            try:
                self._pause(deadline)
            except EmbeddedServerError:
                child.send_signal(signal.SIGINT)
                raise
        self._child = None
        with suppress(OSError):
            sockets.rmdir()
        return None

    def _pause(self, deadline: float) -> None:
        if time.monotonic() > deadline:
            raise EmbeddedServerError(
                f"the embedded Postgres was not ready within {self._timeout.total_seconds():.0f} s",
                hint=f"See {self.log_file}.",
                detail=self._log_tail(),
            )
        time.sleep(0.02)

    def _initialise(self, bin_dir: Path, account: install.Account) -> None:
        """Create the cluster in a temporary directory, then rename it: a killed start leaves no partial cluster."""
        password = _ensure_password(self.password_file)
        superuser_password = _ensure_password(self.superuser_password_file)
        fresh = Path(tempfile.mkdtemp(prefix="init-", dir=self.data_dir))
        if account.switch:
            os.chown(fresh, account.uid, account.gid)
        sockets = _make_socket_dir(self.data_dir, account)
        with _private_file(sockets, superuser_password, account) as pwfile, _reachable(fresh, account) as (path, fds):
            self._run(
                [str(bin_dir / "initdb"), "-D", path, f"--pwfile={pwfile}", *_initdb_options(self.version)],
                account,
                fds,
            )
            # Single-user mode: the database and its owner exist before anyone can connect.
            self._run(
                [str(bin_dir / "postgres"), "--single", "-D", path, "postgres"],
                account,
                fds,
                stdin="".join(f"{line}\n" for line in ownership.setup_statements(ROLE, password, DATABASE)),
            )
        fresh.rename(self.pgdata)
        _sync_directory(self.data_dir)

    def _run(self, command: list[str], account: install.Account, fds: tuple[int, ...], *, stdin: str = "") -> None:
        result = subprocess.run(  # noqa: S603  # nosec B603
            command, input=stdin, capture_output=True, text=True, pass_fds=fds, **account.popen()
        )
        # Single-user mode reports a failed statement only in its output.
        if result.returncode != 0 or "ERROR:" in result.stderr:
            raise EmbeddedServerError(
                f"{Path(command[0]).name} failed in {self.data_dir}",
                hint="See the detail. The next start creates the cluster again.",
                detail=(result.stdout + result.stderr)[-4000:],
            )

    def _check_version(self) -> None:
        try:
            version = (self.pgdata / "PG_VERSION").read_text().strip()
        except OSError as exc:
            raise EmbeddedServerError(
                f"{self.pgdata} is not a Postgres data directory", hint="Choose another directory with --data."
            ) from exc
        if version != str(self.version):
            raise EmbeddedServerError(
                f"{self.data_dir} was created by Postgres {version}, this is Postgres {self.version}",
                hint="Dump it with the old version and restore it into a new directory.",
            )

    def _remove_leftovers(self, deadline: float) -> None:
        """Remove what a kill -9 leaves behind: unfinished clusters, orphaned backends and a stale pid file."""
        for unfinished in self.data_dir.glob("init-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        # Backends exit when their postmaster dies, except suspended ones (SIGSTOP). They hold nothing of use, but a new
        # postmaster does not start while they are attached to the shared memory.
        patience = time.monotonic() + 5
        while orphans := find_processes(self.pgdata):
            if time.monotonic() > patience:
                for pid in orphans:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._pause(deadline)
        # Nothing runs here, so the file is stale. Postgres would not start if another program had its pid.
        (self.pgdata / "postmaster.pid").unlink(missing_ok=True)

    def _choose_port(self) -> int:
        if self._wanted_port is not None:
            if not _is_free(self._wanted_port):
                raise EmbeddedServerError(
                    f"port {self._wanted_port} is already in use",
                    hint="Choose another port with --pg-port, or omit it to use a free one.",
                )
            return self._wanted_port
        with suppress(OSError, ValueError):
            last = int((self.data_dir / "port").read_text())
            if _is_free(last):
                return last
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port: int = probe.getsockname()[1]
            return port

    def _open_log(self) -> IO[bytes]:
        with suppress(FileNotFoundError):
            if self.log_file.stat().st_size > _LOG_LIMIT:
                self.log_file.replace(self.log_file.with_suffix(".log.1"))
        return open(self.log_file, "ab", opener=lambda path, flags: os.open(path, flags, 0o600))

    def _log_tail(self) -> str:
        with suppress(OSError):
            return "\n".join(self.log_file.read_text(errors="replace").splitlines()[-20:])
        return ""


def _initdb_options(version: int) -> list[str]:
    # The built-in C.UTF-8 sorts the same on every machine; versions before 17 do not have it.
    locale = ["--locale=C"]
    if version >= 17:
        locale += ["--locale-provider=builtin", "--builtin-locale=C.UTF-8"]
    settings = [part for name, value in _STATIC.items() for part in ("--set", f"{name}={value}")]
    return [
        f"--username={SUPERUSER}",
        "--auth=scram-sha-256",
        "--encoding=UTF8",
        "--data-checksums",
        *locale,
        *settings,
    ]


def _make_data_dir(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        # 0711 for root: the server's account must reach pgdata, which it owns.
        path.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
    except OSError as exc:
        raise EmbeddedServerError(
            f"cannot create {path}: {exc.strerror}", hint="Choose another directory with --data."
        ) from exc


def _read_password(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as exc:
        raise EmbeddedServerError(
            f"cannot read {path}: {exc.strerror}",
            hint="Restore the file, or run as the account that created it.",
        ) from exc


def _ensure_password(path: Path) -> str:
    with suppress(FileNotFoundError):
        if password := path.read_text().strip():
            return password
    password = secrets.token_urlsafe(24)
    partial = path.with_suffix(".new")
    partial.unlink(missing_ok=True)
    descriptor = os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "w") as file:
        file.write(password + "\n")
        file.flush()
        os.fsync(file.fileno())
    partial.replace(path)
    return password


def _make_socket_dir(data_dir: Path, account: install.Account) -> Path:
    """Create a directory that only the server's account can enter.

    Its path is short: socket paths have at most 107 bytes.
    """
    digest = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]
    path = Path("/tmp") / f"trunkline-{account.uid}-{digest}"  # noqa: S108  ownership is checked below  # nosec B108
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not path.is_symlink() and status.st_uid == account.uid and status.st_mode & 0o077 == 0:
            return path
        # The name is taken by another account. A random one works too: clients read it from postmaster.pid.
        path = Path(tempfile.mkdtemp(prefix="trunkline-", dir="/tmp"))  # nosec B108
    if account.switch:
        os.chown(path, account.uid, account.gid)
    return path


@contextmanager
def _private_file(directory: Path, text: str, account: install.Account) -> Iterator[Path]:
    descriptor, name = tempfile.mkstemp(dir=directory)
    try:
        with os.fdopen(descriptor, "w") as file:
            file.write(text + "\n")
            if account.switch:
                os.fchown(file.fileno(), account.uid, account.gid)
        yield Path(name)
    finally:
        Path(name).unlink(missing_ok=True)


@contextmanager
def _reachable(path: Path, account: install.Account) -> Iterator[tuple[str, tuple[int, ...]]]:
    """Yield a name for `path` that `account` can open, and the descriptors to pass to the child process.

    The account may have no access to the parent directories (/root, or a 0700 temporary directory), and we must not
    change their permissions. A descriptor opened by root gives direct access.
    """
    if not account.switch or _can_enter(path, account):
        yield str(path), ()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}", (descriptor,)
    finally:
        os.close(descriptor)


def _can_enter(path: Path, account: install.Account) -> bool:
    command = ["test", "-x", f"{path}/."]
    return subprocess.run(command, check=False, **account.popen()).returncode == 0  # noqa: S603  # nosec B603


def _is_free(port: int) -> bool:
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
    return True


def _sync_directory(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
