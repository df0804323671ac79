"""Programs with masters of their own on shuffle servers."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from treadle.shuffle import Service

HERE = Path(__file__).parent


class Application:
    """A program of its own, with a master of its own."""

    def __init__(self, address: str, seed: int) -> None:
        path = os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])
        self.process = subprocess.Popen(
            [sys.executable, str(HERE / "shuffle_application.py"), address, str(seed)],
            env={**os.environ, "PYTHONPATH": path},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def says(self, word: str) -> None:
        assert self.process.stdout is not None
        assert self.process.stdout.readline().strip() == word

    def goes_on(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.process.wait()


def held(service: Service) -> dict[str, int]:
    """Bytes of rows at each server."""
    return {server["name"]: server["held_bytes"] for server in service.state()["servers"]}
