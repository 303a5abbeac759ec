"""A private PostgreSQL server on a local socket, where its programs are installed."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

PROGRAMS = ("initdb", "postgres")


def installed() -> bool:
    """Whether a server can be started here."""
    return all(shutil.which(name) for name in PROGRAMS)


@contextmanager
def server() -> Iterator[str]:
    """Runs a server with an empty database in a temporary directory; yields its URL.

    PostgreSQL refuses to run as root, so root runs it as `postgres` or `nobody`.
    """
    user = None
    if os.geteuid() == 0:
        names = {entry.pw_name for entry in pwd.getpwall()}
        user = "postgres" if "postgres" in names else "nobody"
    # The path of a local socket may have some hundred bytes only, so it is not below pytest's directory.
    with tempfile.TemporaryDirectory(prefix="weighbridge-pg-") as name:
        root = Path(name)
        data = root / "data"
        if user is not None:
            shutil.chown(root, user)
        initdb, postgres = (str(shutil.which(program)) for program in PROGRAMS)
        command = [initdb, "-D", str(data), "-U", "weighbridge", "--auth=trust", "--no-sync", "-E", "UTF8"]
        subprocess.run(command, check=True, user=user, stdout=subprocess.DEVNULL, env={"LC_ALL": "C"}, cwd="/")
        command = [postgres, "-D", str(data), "-k", name, "-c", "listen_addresses=", "-c", "fsync=off"]
        with (root / "log").open("wb") as log:
            process = subprocess.Popen(command, user=user, stdout=log, stderr=log, env={"LC_ALL": "C"}, cwd="/")
        try:
            deadline = time.monotonic() + 120
            while not _answers(name):
                assert process.poll() is None, (root / "log").read_text()
                assert time.monotonic() < deadline
                time.sleep(0.05)
            yield f"postgresql+psycopg://weighbridge@/postgres?host={name}"
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


def _answers(socket: str) -> bool:
    try:
        psycopg.connect(host=socket, user="weighbridge", dbname="postgres").close()
    except psycopg.OperationalError:
        return False
    return True
