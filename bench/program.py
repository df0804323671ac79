"""A process of a figure: started, asked in turns, and ended."""

from __future__ import annotations

import functools
import json
import os
import queue
import shlex
import subprocess
import threading
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Any

BENCH = Path(__file__).parent


def processor_time(pid: int) -> float:
    """Seconds of processor time of a process so far, of user and kernel."""
    return time.clock_gettime(~pid << 3 | 2)  # CPUCLOCK_SCHED of clock_getcpuclockid(3)


@functools.cache
def compiled(source: Path, *flags: str, libraries: tuple[str, ...] = ()) -> str:
    """The program or library made of a file in C or C++, compiled anew when it changed."""
    out = source.parent / "out"
    made = out / (source.stem + (".so" if "-shared" in flags else ""))
    if not made.exists() or made.stat().st_mtime < source.stat().st_mtime:
        out.mkdir(exist_ok=True)
        compiler = "g++" if source.suffix == ".cc" else "gcc"
        command = [compiler, "-Wall", "-Wextra", *flags, str(source), "-o", str(made)]
        subprocess.run([*command, *libraries, "-ldl"], check=True, timeout=120)
    return str(made)


class Program:
    """A process that answers lines on standard output to lines on standard input."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str] | None = None):
        self.name = shlex.join(str(part).removeprefix(f"{BENCH}/") for part in command)
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, **(environment or {})},
        )
        self._lines: queue.Queue[str] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put("")

    def line(self, timeout: float = 60) -> str:
        try:
            line = self._lines.get(timeout=timeout)
        except queue.Empty:
            raise TimeoutError(f"{self.name}: no answer within {timeout:g} s") from None
        if not line:
            raise RuntimeError(f"{self.name} ended with status {self.process.wait(10)}")
        return line

    def told(self, timeout: float = 60) -> dict[str, Any]:
        told: dict[str, Any] = json.loads(self.line(timeout))
        return told

    def tell(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def tell_to(self, **arguments: Any) -> None:
        self.tell(json.dumps(arguments))

    def ask(self, timeout: float = 60, **arguments: Any) -> dict[str, Any]:
        self.tell_to(**arguments)
        return self.told(timeout)

    def cpu(self) -> float:
        return processor_time(self.process.pid)

    def close(self) -> None:
        """End the process: by the end of its input, and by force if that does not do."""
        if self.process.stdin and not self.process.stdin.closed:
            with suppress(BrokenPipeError):
                self.process.stdin.close()
        try:
            self.process.wait(0.5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait(10)

    def __enter__(self) -> Program:
        return self

    def __exit__(
        self,
        _kind: type[BaseException] | None,
        _error: BaseException | None,
        _trace: TracebackType | None,
    ) -> None:
        self.close()
