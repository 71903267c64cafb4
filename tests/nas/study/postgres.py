"""A PostgreSQL server for a single test."""

import contextlib
import os
import pwd
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests import requirements

# The server refuses to run as root.
NOBODY = pwd.getpwnam("nobody")
USER: dict[str, Any] = {}
if os.geteuid() == 0:
    USER = {"user": NOBODY.pw_uid, "group": NOBODY.pw_gid, "extra_groups": ()}


@dataclass
class Server:
    """A server that only listens on a Unix socket in its folder."""

    folder: Path
    process: subprocess.Popen[bytes] | None = None

    @property
    def url(self) -> str:
        return f"postgresql+psycopg://tester@/postgres?host={self.folder}"

    def start(self) -> None:
        """Start the server and wait until it answers."""
        import psycopg

        command = [requirements.program("postgres"), "-D", self.folder / "data", "-k", self.folder, "-h", "", "-F"]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, stdout=log, stderr=log, **USER)
        while True:
            assert self.process.poll() is None, (self.folder / "log").read_text()
            try:
                return self.execute("SELECT")
            except psycopg.OperationalError:
                time.sleep(0.02)

    def execute(self, statement: str) -> None:
        """Execute one statement outside of a transaction."""
        import psycopg

        with psycopg.connect(host=str(self.folder), user="tester", dbname="postgres", autocommit=True) as connection:
            connection.execute(statement)

    def stop(self) -> None:
        """Stop the server at once, which closes every connection."""
        if self.process is not None:
            self.process.send_signal(signal.SIGQUIT)
            self.process.wait()


@contextlib.contextmanager
def running() -> Iterator[Server]:
    """Run a new server during the block. Without PostgreSQL or its driver the test is skipped, or fails in CI."""
    requirements.module("psycopg", "postgresql")
    initdb = requirements.program("initdb")
    with tempfile.TemporaryDirectory(prefix="nas-postgres-") as folder:  # pytest's are closed to other users
        server = Server(Path(folder))
        if USER:
            os.chown(folder, NOBODY.pw_uid, NOBODY.pw_gid)
        command = [initdb, "-D", server.folder / "data", "-U", "tester", "-A", "trust", "-E", "UTF8", "--no-locale"]
        subprocess.run([*command, "--no-sync"], check=True, stdout=subprocess.DEVNULL, **USER)
        try:
            server.start()
            yield server
        finally:
            server.stop()
