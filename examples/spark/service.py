"""A shuffle service on this machine, for the demos: a master and servers, as processes."""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path


class Service:
    """A master and servers, as processes."""

    def __init__(self, stack: ExitStack, directory: Path, memory: str = "1GiB") -> None:
        self._stack, self._directory, self._memory = stack, directory, memory
        self.secret = directory / "secret"
        self.secret.touch(mode=0o600)
        self.secret.write_text("a secret of this demo")
        self._processes: dict[str, subprocess.Popen[str]] = {}
        self.address = self._start("master", "shuffle-master", "127.0.0.1:0")
        for name in ("a", "b"):
            self.begin(name)

    def _start(self, name: str, *arguments: str) -> str:
        journal = ("--shuffle-journal", "none") if name == "master" else ()
        command = (*arguments, *journal, "--secret-file", str(self.secret))
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *command],
            # What it says of servers that come and go is said here.
            env={"TREADLE_LOG": "error", **os.environ},
            stdout=subprocess.PIPE,
            text=True,
        )
        self._processes[name] = process
        self._stack.callback(process.wait)
        self._stack.callback(process.kill)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("listening at "):
                return line.removeprefix("listening at ").strip()
        raise RuntimeError(f"{arguments[0]} has ended")

    def begin(self, name: str) -> None:
        """Start a server. Its name is its failure domain."""
        limits = ("--memory-limit", self._memory, "--local-directory", str(self._directory / name))
        own = ("--name", name, "--domain", name, "--http", "none")
        self._start(name, "shuffle-server", self.address, *own, *limits)

    def settings(self) -> dict[str, str]:
        """What an application sets to shuffle here."""
        return {
            "spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager",
            "spark.treadle.servers": self.address,
            "spark.treadle.secretFile": str(self.secret),
        }

    def kill(self, name: str) -> None:
        self._processes[name].kill()
        self._processes[name].wait()
