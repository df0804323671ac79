"""``treadle`` in a process of its own."""

from __future__ import annotations

import subprocess
import sys

import click

__all__ = ["ANNOUNCED", "Child"]

# What it says, before its address.
ANNOUNCED = "listening at "


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
            text=True,
            start_new_session=True,
        )
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
        # It has said why.
        raise click.exceptions.Exit(self._process.wait() or 1)

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
