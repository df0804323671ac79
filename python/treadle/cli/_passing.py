"""A program that runs in the place of a command."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

__all__ = ["run"]

_PR_SET_PDEATHSIG = 1
_PASSED = (
    signal.SIGTERM, signal.SIGHUP, signal.SIGINT, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2,
)  # fmt: skip


def run(command: Sequence[str], variables: Mapping[str, str]) -> tuple[int, bool]:
    """Run a program as if it were this one.

    It gets the signals that this process gets; of those of the terminal, both get their own. It ends with this process.

    Returns
    -------
    The program's exit code, or 128 and the number of the signal that ended it; and whether there was a signal.

    Raises
    ------
    OSError
        It cannot be run.
    """
    came: list[int] = []
    process: subprocess.Popen[bytes] | None = None

    def send(number: int, _: FrameType | None) -> None:
        came.append(number)
        # The terminal sends SIGINT to the program, too.
        if process is not None and number != signal.SIGINT:
            process.send_signal(number)

    # What is ignored, with nohup say, the program ignores, too.
    listened = [number for number in _PASSED if signal.getsignal(number) is not signal.SIG_IGN]
    before = {number: signal.signal(number, send) for number in listened}
    parent = os.getpid()

    def begin() -> None:
        if sys.platform == "linux":
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
            if os.getppid() != parent:
                os._exit(1)

    try:
        process = subprocess.Popen(command, env={**os.environ, **variables}, preexec_fn=begin)
        for number in came:
            process.send_signal(number)
        code = process.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    return (128 - code if code < 0 else code), bool(came)
