"""``treadle`` in a process of its own."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections import deque

import click

__all__ = ["ANNOUNCED", "CannotStart", "Child"]

# How much of its standard error is kept.
_LINES = 20

# What it says, before its address.
ANNOUNCED = "listening at "


class CannotStart(click.exceptions.Exit):
    """A process has ended before it listened. ``said`` is what it wrote to its standard error, which is here, too."""

    def __init__(self, status: int, said: str) -> None:
        super().__init__(status)
        self.said = said


class Child:
    """``treadle`` with these arguments in a process of its own, which listens somewhere.

    It must end with its input (``treadle.cli``): it does not outlive this process, however that ends.
    """

    def __init__(self, *arguments: str) -> None:
        # In a session of its own, so that Ctrl-C is for this process alone.
        self._process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *arguments],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        self._said: deque[str] = deque(maxlen=_LINES)
        self._passing = threading.Thread(target=self._pass_on, name="treadle-child", daemon=True)
        self._passing.start()
        try:
            self.address = self._announced()
        except BaseException:
            self.end()
            raise

    def _announced(self) -> str:
        assert self._process.stdout is not None
        for line in self._process.stdout:
            if line.startswith(ANNOUNCED):
                return line.removeprefix(ANNOUNCED).strip()
        status = self._process.wait() or 1
        self._passing.join(1)
        raise CannotStart(status, "".join(self._said).strip())

    def _pass_on(self) -> None:
        assert self._process.stderr is not None
        with self._process.stderr as lines:
            for line in lines:
                self._said.append(line)
                sys.stderr.write(line)

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.end()

    def end(self) -> None:
        """End the process, by force if need be."""
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(10)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()
