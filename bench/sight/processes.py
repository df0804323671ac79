"""A scheduler and workers in processes of their own, as the benches of what is recorded start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
import uuid
from contextlib import ExitStack
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


class Cluster:
    """A scheduler and workers of one thread.

    Parameters
    ----------
    folder
        Where secrets and the scheduler's file go.
    stack
        Ends the processes.
    workers
        How many.
    options
        Of the scheduler's command.
    sight
        Whether they record what they do.
    """

    def __init__(
        self,
        folder: Path,
        stack: ExitStack,
        workers: int = 2,
        options: tuple[str, ...] = (),
        sight: bool = True,
    ) -> None:
        secret, token = folder / "secret", folder / "token"
        for path in (secret, token):
            path.touch(mode=0o600)
            path.write_text(uuid.uuid4().hex)
        os.environ["TREADLE_SECRET_FILE"] = str(secret)
        self._environment = {**os.environ, "DASK_TREADLE__SIGHT": str(sight)}
        self._stack = stack
        file = folder / "scheduler.json"
        self.file = str(file)
        own = ("--port", "0", "--http-token-file", str(token), "--scheduler-file", self.file)
        self.scheduler = self._start("scheduler", *own, *options)
        while not file.exists() or not file.stat().st_size:
            time.sleep(0.01)
        self.link = str(json.loads(file.read_text())["http"])
        self.workers = [
            self._start(
                "worker", "--scheduler-file", self.file, "--name", f"w{number}", "--nthreads", "1"
            )
            for number in range(workers)
        ]

    def _start(self, *arguments: str) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-m", "treadle", *arguments]
        process = subprocess.Popen(command, env=self._environment, stdout=subprocess.DEVNULL)
        self._stack.callback(process.wait)
        self._stack.callback(process.terminate)
        return process

    def processor(self) -> float:
        """Seconds that the scheduler's process has taken."""
        fields = Path(f"/proc/{self.scheduler.pid}/stat").read_text().rpartition(") ")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICKS

    def memory(self) -> int:
        """Bytes of the scheduler's process."""
        return resident(self.scheduler)


def resident(process: subprocess.Popen[bytes]) -> int:
    """Bytes of memory that a process has."""
    for line in Path(f"/proc/{process.pid}/status").read_text().splitlines():
        if line.startswith("VmRSS"):
            return int(line.split()[1]) * 1024
    return 0
