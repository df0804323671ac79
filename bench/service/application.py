"""An application in a process of its own, which reads its shuffle when it is told to."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any


class Application:
    """A process that runs a program of this folder, and has written its shuffle when it says "ready"."""

    def __init__(self, program: str, *arguments: object) -> None:
        self._process = subprocess.Popen(
            [sys.executable, program, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        )

    def said(self) -> Any:
        assert self._process.stdout is not None
        return json.loads(self._process.stdout.readline())

    def begin(self, *told: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(" ".join(map(str, told)) + "\n")
        self._process.stdin.flush()

    def end(self) -> None:
        self._process.kill()
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
