"""The processes of a Spark application on this machine: the demo and the tests end some of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any


def executors_of(port: Any) -> list[int]:
    """The processes of the executors of a driver that listens at a port of this machine, the eldest first."""
    own = f"spark://CoarseGrainedScheduler@127.0.0.1:{port} "
    found = []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                command = (process / "cmdline").read_bytes().decode().replace("\0", " ")
            except OSError:
                continue
            if own in command and "java" in command.split(" ", 1)[0]:
                found.append(int(process.name))
    return sorted(found)
