"""A PostgreSQL server of our own: in a fresh folder, on a Unix socket, as an ordinary user."""

from __future__ import annotations

import os
import pwd
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

PASSWORD = "planted-Pa55word"


@dataclass(frozen=True)
class Postgres:
    """A running server with one database, ``postgres``, and one login, ``owner``."""

    folder: Path

    @property
    def address(self) -> str:
        return f"postgresql://owner@/postgres?host={self.folder}"

    def passfile(self, path: Path, password: str = PASSWORD) -> Path:
        path.write_text(f"*:*:*:owner:{password}\n")
        path.chmod(0o600)
        return path


@contextmanager
def started() -> Iterator[Postgres]:
    """Start a server; skip the test, with the reason, where none can be started."""
    if not (shutil.which("initdb") and shutil.which("pg_ctl")):
        pytest.skip("no PostgreSQL server is installed: initdb and pg_ctl are not on the path")
    folder = Path(tempfile.mkdtemp(prefix="pg-", dir="/tmp"))  # a socket's path must be short
    as_user = _ordinary_user(folder)
    try:
        (folder / "password").write_text(PASSWORD + "\n")
        (folder / "password").chmod(0o644)
        data = str(folder / "data")
        _run(
            [
                *as_user,
                *("initdb", "-D", data, "-U", "owner", "--pwfile", str(folder / "password")),
                *("--auth=scram-sha-256", "--no-sync", "--locale=C", "-E", "UTF8"),
            ]
        )
        options = f"-c listen_addresses= -c unix_socket_directories={folder} -c fsync=off"
        _run([*as_user, "pg_ctl", "-D", data, "-w", "-l", f"{folder}/log", "-o", options, "start"])
        try:
            yield Postgres(folder)
        finally:
            _run([*as_user, "pg_ctl", "-D", data, "-m", "immediate", "stop"])
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _ordinary_user(folder: Path) -> list[str]:
    """The server refuses to run as root."""
    if os.getuid() != 0:
        return []
    if not shutil.which("setpriv"):
        pytest.skip("PostgreSQL does not run as root, and setpriv is not on the path")
    user = pwd.getpwnam("nobody")
    os.chown(folder, user.pw_uid, user.pw_gid)
    folder.chmod(0o755)
    return ["setpriv", f"--reuid={user.pw_uid}", f"--regid={user.pw_gid}", "--clear-groups", "--"]


def _run(command: list[str]) -> None:
    ended = subprocess.run(
        command, cwd="/", stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE, timeout=120,
    )  # fmt: skip
    if ended.returncode:
        pytest.skip(f"PostgreSQL cannot be started here: {ended.stderr.decode()[-300:]}")
