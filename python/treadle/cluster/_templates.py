"""The template that waits: workers that are replaced, and those of the next cluster, are forked from it, too."""

from __future__ import annotations

import atexit
import os
import sys
import threading
from collections.abc import Hashable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from treadle.cluster._template import Template

__all__ = ["prepare", "release", "waiting"]

# Of /proc: what a process takes over from the thread that starts it, and what may change.
_INHERITED = (
    "Umask",
    "Uid",
    "Gid",
    "Groups",
    "CapEff",
    "SigBlk",
    "SigIgn",
    "Cpus_allowed",
    "Mems_allowed",
)


class _Waiting(NamedTuple):
    template: Template
    #: What a worker would have of this process if it were started now, as it was then.
    inherited: Hashable


_lock = threading.Lock()
# The last one: programs that alternate between environments start as without it.
_last: _Waiting | None = None


def prepare(command: Sequence[str], environment: Mapping[str, str], **options: Any) -> None:
    """Have a template wait for the workers of this environment, where forks are safe.

    ``options`` are of :class:`subprocess.Popen`.
    """
    global _last
    if sys.platform != "linux":
        return
    inherited = _inherited(command, environment)
    with _lock:
        before, _last = _last, None
        if before is not None and before.inherited == inherited and not before.template.is_over:
            _last = before
            return
        if before is not None:
            before.template.close()
        _last = _Waiting(Template(command, env=dict(environment), **options), inherited)


def waiting(command: Sequence[str], environment: Mapping[str, str]) -> Template | None:
    """Return the template that forks just what would be started by itself now, if there is one."""
    with _lock:
        if _last is None or _last.template.is_over:
            return None
        return _last.template if _last.inherited == _inherited(command, environment) else None


def _inherited(command: Sequence[str], environment: Mapping[str, str]) -> Hashable:
    of_thread = Path("/proc/thread-self")
    status = (of_thread / "status").read_text().splitlines()
    return (
        tuple(command),
        frozenset(environment.items()),
        frozenset((path, _changed(path)) for path in sys.path if path.endswith("-packages")),
        os.readlink(of_thread / "cwd"),
        tuple(line for line in status if line.startswith(_INHERITED)),
        os.getpriority(os.PRIO_PROCESS, 0),
        *((of_thread / name).read_text() for name in ("limits", "cgroup", "oom_score_adj")),
    )


def _changed(folder: str) -> int:
    # Whatever a package manager installs, it changes the folder of packages.
    try:
        return os.stat(folder).st_mtime_ns
    except OSError:
        return 0


@atexit.register
def release() -> None:
    """Have no template wait any more: it ends when its workers have."""
    global _last
    with _lock:
        before, _last = _last, None
    if before is not None:
        before.template.close()


def _forget() -> None:
    """In a forked child it is the parent's."""
    global _last, _lock
    _last, _lock = None, threading.Lock()


os.register_at_fork(after_in_child=_forget)
