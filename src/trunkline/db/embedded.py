"""A private Postgres in a directory of ours, from the programs of a wheel.

The server listens on loopback and on a socket that only its account (and root) can reach, wants a password
on both, and keeps `fsync` on. Everything below the directory survives a kill -9 of any process at any moment:

    lock           held (flock) by the process that owns the server; others attach to what runs
    password       of role trunkline, which owns the database and is no superuser; readable for its owner alone
    superuser-password   of role trunkline_superuser, which only makes that role; readable for its owner alone
    port           the port of the last start, taken again when it is free
    pgdata/        the cluster; it appears by a rename, so it is complete or absent
    postgres.log   what the server says
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

from trunkline.db import ownership, pginstall
from trunkline.db.postmaster import Postmaster, find_postmaster, find_processes
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
    "shared_buffers": "256MB",
    "max_prepared_transactions": "20",
    "log_checkpoints": "off",  # one line each five minutes would be most of the log
    "timezone": "UTC",
    "log_timezone": "UTC",
}
_log = logging.getLogger(__name__)


class EmbeddedServer:
    """One embedded server. `start` is idempotent over processes: whoever comes second attaches."""

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
        """Whether this object stops the server; False means that it only attached to another process's."""
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
        """The same for an administrator: to create extensions, databases and roles."""
        return self._socket_url(SUPERUSER, _read_password(self.superuser_password_file))

    @property
    def tcp_url(self) -> str:
        """Connection URL over loopback, for programs that cannot use a socket."""
        return f"postgresql://{ROLE}:{self._password()}@127.0.0.1:{self.port}/{DATABASE}"

    def alive(self) -> bool:
        """Whether the server of this directory runs. Reaps a dead child, so that a restart can follow."""
        if self._child is not None and self._child.poll() is not None:
            self._child = None
        return find_postmaster(self.pgdata) is not None

    def start(self) -> str:
        """Make the server run and return its URL.

        Starts it, adopts one that outlived its owner, or attaches to one that another process owns.
        """
        deadline = time.monotonic() + self._timeout.total_seconds()
        _make_data_dir(self.data_dir)
        while not self._take_lock():
            # The owner may still be busy with its first start, or may be about to leave.
            found = find_postmaster(self.pgdata)
            if found and found.ready and found.answers():
                self._running = found
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
        """The URL of the server that runs on this directory already; never starts one."""
        found = find_postmaster(self.pgdata)
        if found is None or not found.ready:
            raise EmbeddedServerError(f"no embedded Postgres runs on {self.data_dir}", hint="start it with trunkline up")
        self._running = found
        return self.url

    def issued(self, url: str) -> bool:
        """Return whether this URL leads to this server, also when it does not run or has another port by now.

        Its password is random and stands in no other URL.
        """
        from psycopg.conninfo import conninfo_to_dict

        given = conninfo_to_dict(url)
        host = str(given.get("host") or given.get("hostaddr") or "")
        local = host in _LOOPBACK or host.startswith("/")
        if not local or (given.get("user"), given.get("dbname")) != (ROLE, DATABASE):
            return False
        try:
            return given.get("password") == self._password()
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
            found = find_postmaster(self.pgdata)
            if found is None:
                break
            with suppress(ProcessLookupError):
                os.kill(found.pid, signum)
            end = time.monotonic() + seconds
            # Its pid file goes first; the processes and the socket follow a moment later.
            while time.monotonic() < end and (self.alive() or find_processes(self.pgdata)):
                time.sleep(0.02)
        if self.alive():
            raise EmbeddedServerError(
                f"the embedded Postgres (process {self.postmaster_pid}) does not stop",
                detail=self._log_tail(),
            )

    def _known(self) -> Postmaster:
        if self._running is None:
            raise EmbeddedServerError("the embedded Postgres was not started", hint="call start() first")
        return self._running

    def _password(self) -> str:
        return _read_password(self.password_file)

    def _socket_url(self, role: str, password: str) -> str:
        host = quote(str(self.socket_dir), safe="")
        return f"postgresql://{role}:{password}@/{DATABASE}?host={host}&port={self.port}"

    def _separate_superuser(self) -> None:
        """In the directory of an earlier release role trunkline is a superuser: hand its databases to one that is not."""
        pending = self.data_dir / "superuser-password.pending"
        if self.superuser_password_file.exists():
            return
        superuser = ownership.needs_separation(self.url)
        if not superuser and not pending.exists():
            return  # the file was lost
        password = _ensure_password(pending)
        if superuser:
            ownership.swap_roles(self.url, superuser=SUPERUSER, password=password)
            _log.info("role %s is no superuser any more; that is role %s now", ROLE, SUPERUSER)
        # a start that was killed here continues with the same password
        ownership.hand_over(self._socket_url(SUPERUSER, password), ROLE)
        pending.replace(self.superuser_password_file)
        _sync_directory(self.data_dir)

    def _take_lock(self) -> bool:
        if self._lock is not None:
            return True
        try:
            # for its owner only: a lock needs no right to write, so any user that could open the file could keep us out
            descriptor = os.open(self.data_dir / "lock", os.O_CREAT | os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC, 0o600)
            file = os.fdopen(descriptor, "a")
            if os.fstat(descriptor).st_mode & 0o077:
                with suppress(PermissionError):
                    os.fchmod(descriptor, 0o600)
        except OSError as exc:
            raise EmbeddedServerError(
                f"{self.data_dir} cannot be used: {exc.strerror}",
                hint="run as the account that owns it, or choose another directory with --data",
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
        """A postmaster whose owner was killed is ours now."""
        while found := find_postmaster(self.pgdata):
            # One that was just killed may still be in /proc, but it no longer answers.
            if found.ready and found.answers():
                _log.info("adopted the running Postgres, process %s", found.pid)
                return found
            self._pause(deadline)
        return None

    def _launch(self, deadline: float) -> Postmaster:
        account = pginstall.choose_account(self.pgdata)
        bin_dir = pginstall.programs(self.version, account)
        if not self.pgdata.exists():
            self._initialise(bin_dir, account)
        self._check_version()
        self._password()  # without it the server would start, and nobody could enter
        for _ in range(_ATTEMPTS):
            self._remove_leftovers(deadline)
            port = self._choose_port()
            found = self._spawn(bin_dir, account, port, deadline)
            if found is not None:
                (self.data_dir / "port").write_text(f"{port}\n")
                return found
            # It exited. Somebody else may have taken the port since we looked, or a process of a killed server was
            # still about to end: both pass. What does not pass fails again.
            if self._wanted_port is not None and not _is_free(port):
                break
            time.sleep(_ATTEMPT_PAUSE)
        raise EmbeddedServerError(
            "the embedded Postgres did not start", hint=f"see {self.log_file}", detail=self._log_tail()
        )

    def _spawn(self, bin_dir: Path, account: pginstall.Account, port: int, deadline: float) -> Postmaster | None:
        """Start the postmaster and wait for it; None when it exited."""
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
            # A session of its own: Ctrl-C at our terminal must not reach the server before we have drained.
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
            found = find_postmaster(self.pgdata)
            if found and found.pid == child.pid and found.ready:
                return found
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
                hint=f"see {self.log_file}",
                detail=self._log_tail(),
            )
        time.sleep(0.02)

    def _initialise(self, bin_dir: Path, account: pginstall.Account) -> None:
        """Make the cluster beside its final place, then rename it: a killed start leaves no half."""
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

    def _run(self, command: list[str], account: pginstall.Account, fds: tuple[int, ...], *, stdin: str = "") -> None:
        done = subprocess.run(  # noqa: S603  # nosec B603
            command, input=stdin, capture_output=True, text=True, pass_fds=fds, **account.popen()
        )
        # Single-user mode reports a failed statement only in its output.
        if done.returncode != 0 or "ERROR:" in done.stderr:
            raise EmbeddedServerError(
                f"{Path(command[0]).name} failed in {self.data_dir}",
                hint="see the detail; the next start begins afresh",
                detail=(done.stdout + done.stderr)[-4000:],
            )

    def _check_version(self) -> None:
        try:
            found = (self.pgdata / "PG_VERSION").read_text().strip()
        except OSError as exc:
            raise EmbeddedServerError(
                f"{self.pgdata} is not a Postgres data directory", hint="choose another directory with --data"
            ) from exc
        if found != str(self.version):
            raise EmbeddedServerError(
                f"{self.data_dir} was made by Postgres {found}, this is Postgres {self.version}",
                hint="dump it with the old version and restore it into a new directory",
            )

    def _remove_leftovers(self, deadline: float) -> None:
        """What a kill -9 leaves behind: unfinished clusters, orphaned backends and a stale pid file."""
        for unfinished in self.data_dir.glob("init-*"):
            shutil.rmtree(unfinished, ignore_errors=True)
        # Backends notice the death of their postmaster and leave; a stopped one never would. They hold
        # nothing of use, but a new postmaster refuses to start while they are attached to the shared memory.
        patience = time.monotonic() + 5
        while orphans := find_processes(self.pgdata):
            if time.monotonic() > patience:
                for pid in orphans:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            self._pause(deadline)
        # Nothing runs here, so the file is stale. Postgres would refuse if another program had its pid.
        (self.pgdata / "postmaster.pid").unlink(missing_ok=True)

    def _choose_port(self) -> int:
        if self._wanted_port is not None:
            if not _is_free(self._wanted_port):
                raise EmbeddedServerError(
                    f"port {self._wanted_port} is taken",
                    hint="choose another with --pg-port, or leave it out for a free one",
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
        # 0711 for root: the server's account has to pass through to pgdata, which is its own.
        path.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700, exist_ok=True)
    except OSError as exc:
        raise EmbeddedServerError(
            f"{path} cannot be made: {exc.strerror}", hint="choose another directory with --data"
        ) from exc


def _read_password(path: Path) -> str:
    try:
        return path.read_text().strip()
    except OSError as exc:
        raise EmbeddedServerError(
            f"{path} cannot be read: {exc.strerror}",
            hint="restore the file, or run as the account that made it",
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


def _make_socket_dir(data_dir: Path, account: pginstall.Account) -> Path:
    """A short directory (a socket's path may have 107 bytes) that only the server's account can enter."""
    digest = hashlib.sha256(str(data_dir.resolve()).encode()).hexdigest()[:12]
    path = Path("/tmp") / f"trunkline-{account.uid}-{digest}"  # noqa: S108  ownership is checked below  # nosec B108
    try:
        path.mkdir(mode=0o700)
    except FileExistsError:
        status = path.lstat()
        if not path.is_symlink() and status.st_uid == account.uid and status.st_mode & 0o077 == 0:
            return path
        # The name is somebody else's. A random one will do: who attaches reads it from postmaster.pid.
        path = Path(tempfile.mkdtemp(prefix="trunkline-", dir="/tmp"))  # nosec B108
    if account.switch:
        os.chown(path, account.uid, account.gid)
    return path


@contextmanager
def _private_file(directory: Path, text: str, account: pginstall.Account) -> Iterator[Path]:
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
def _reachable(path: Path, account: pginstall.Account) -> Iterator[tuple[str, tuple[int, ...]]]:
    """A name for `path` that `account` can open, with the descriptors to pass along.

    The directories above may be closed to the account (/root, or a 0700 temporary directory), and opening
    other people's directories is not ours to do. A descriptor that root has opened leads there directly.
    """
    if not account.switch or _can_enter(path, account):
        yield str(path), ()
        return
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
    try:
        yield f"/proc/self/fd/{descriptor}", (descriptor,)
    finally:
        os.close(descriptor)


def _can_enter(path: Path, account: pginstall.Account) -> bool:
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
