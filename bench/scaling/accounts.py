"""What the threads of processes have used, from ``/proc``: it means the same on a busy machine."""

from __future__ import annotations

import os
import urllib.parse
import urllib.request
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any


@dataclass(frozen=True)
class Used:
    """Seconds on a processor, seconds that threads waited for one, and how often they slept."""

    ran: float = 0.0
    waited: float = 0.0
    slept: int = 0

    def __add__(self, other: Used) -> Used:
        return Used(self.ran + other.ran, self.waited + other.waited, self.slept + other.slept)

    def __sub__(self, other: Used) -> Used:
        return Used(self.ran - other.ran, self.waited - other.waited, self.slept - other.slept)


def threads(pid: int) -> dict[str, Used]:
    """By the threads' names; the first thread of a process is ``main``. None if the process is gone."""
    found: dict[str, Used] = {}
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            ran, waited, _ = (task / "schedstat").read_text(encoding="ascii").split()
            status = (task / "status").read_text(encoding="utf-8")
            name = "main" if int(task.name) == pid else (task / "comm").read_text("utf-8").strip()
        except (FileNotFoundError, ProcessLookupError):
            continue
        slept = int(status.partition("\nvoluntary_ctxt_switches:")[2].split()[0])
        used = Used(int(ran) / 1e9, int(waited) / 1e9, slept)
        found[name] = found.get(name, Used()) + used
    return found


def total(pids: Iterable[int]) -> Used:
    """All threads of these processes together."""
    return sum((sum(threads(pid).values(), Used()) for pid in pids), Used())


def since(after: dict[str, Used], before: dict[str, Used]) -> dict[str, Used]:
    """What the threads used meanwhile."""
    return {name: used - before.get(name, Used()) for name, used in after.items()}


def counts(client: Any) -> dict[str, float]:
    """What the scheduler's page of metrics says."""
    link = urllib.parse.urlsplit(client.dashboard_link)
    page = urllib.parse.urlunsplit(link._replace(path="/metrics"))
    with urllib.request.urlopen(page, timeout=60) as answer:
        lines = answer.read().decode().splitlines()
    rows = (line.rsplit(" ", 1) for line in lines if not line.startswith("#"))
    return {name.removeprefix("treadle_"): float(value) for name, value in rows}


def children(pid: int = 0) -> list[int]:
    """The processes that a process has started, and those that these have."""
    pid = pid or os.getpid()
    own: list[int] = []
    for task in Path(f"/proc/{pid}/task").glob("*"):
        try:
            own += map(int, (task / "children").read_text(encoding="ascii").split())
        except (FileNotFoundError, ProcessLookupError):
            continue
    return [one for child in own for one in (child, *children(child))]
