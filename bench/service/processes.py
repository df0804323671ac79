"""Starts processes of the service, which end with who started them."""

from __future__ import annotations

import subprocess
import sys
from contextlib import ExitStack


def begun(stack: ExitStack, *arguments: str, prefix: list[str] | None = None) -> str:
    """Start one by the arguments of ``treadle``, until the stack closes; return where it listens.

    Raises
    ------
    RuntimeError
        It has ended before.
    """
    command = [*(prefix or []), sys.executable, "-m", "treadle", *arguments]
    process = subprocess.Popen(
        [*command, "--supervised", "--insecure"],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    stack.callback(process.wait, 30)
    assert process.stdin is not None
    stack.callback(process.stdin.close)
    assert process.stdout is not None
    for line in process.stdout:
        if line.startswith("listening at "):
            return line.removeprefix("listening at ").strip()
    raise RuntimeError(f"{arguments[0]} has ended")
