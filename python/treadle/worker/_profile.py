"""A sampling profiler of a worker's tasks, which runs only while somebody asks for what it finds."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import profile

from treadle.common._groups import prefix_of

__all__ = ["Profiler"]

# Seconds after the last question until it stops: nobody looks at a page for so long.
_UNUSED = 600.0
# Cycles that are kept.
_CYCLES = 3600


class Profiler:
    """Samples the Python frames of the tasks that run, in a thread of its own.

    It begins with the first question and ends ten minutes after the last one. The settings are those
    of ``distributed.worker.profile``: ``interval`` between samples, ``cycle`` for one entry of the
    history, and ``enabled``.

    Parameters
    ----------
    running
        Returns the keys of the tasks that run, by the identifier of their thread.
    """

    def __init__(self, running: Callable[[], Mapping[int, Hashable]]) -> None:
        self._running = running
        self._lock = threading.Lock()
        self._history: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_CYCLES)
        self._keys_history: deque[tuple[float, dict[str, Any]]] = deque(maxlen=_CYCLES)
        self._recent = profile.create()
        self._keys: dict[str, Any] = {}
        self._asked = 0.0
        self._wanted = threading.Event()
        self._thread: threading.Thread | None = None
        self._closed = False

    def profile(
        self,
        start: float | None = None,
        stop: float | None = None,
        key: str | None = None,
        server: bool = False,
    ) -> dict[str, Any]:
        """Return the tree of calls that was sampled between two times, of one prefix or of all.

        Raises
        ------
        NotImplementedError
            ``server``: what would be sampled is native.
        """
        if server:
            raise NotImplementedError(
                "profile(server=True) is not served: Treadle's engine is native"
            )
        self._begin()
        with self._lock:
            if key is None:
                history, recent = list(self._history), self._recent
            else:
                history = [(at, keys[key]) for at, keys in self._keys_history if key in keys]
                recent = self._keys.get(key, profile.create())
            trees = [
                tree
                for at, tree in history
                if (start is None or at >= start) and (stop is None or at <= stop)
            ]
            if stop is None or stop >= time.time():
                trees.append(recent)
            merged: dict[str, Any] = profile.merge(*trees)
            return merged

    def metadata(self, start: float = 0, stop: float | None = None) -> dict[str, Any]:
        """Return how many samples there were, over time, and of which prefix."""
        self._begin()
        now = time.time()
        until = stop or now
        with self._lock:
            counts = [(at, tree["count"]) for at, tree in self._history if start < at < until]
            keys = [
                (at, {key: tree["count"] for key, tree in trees.items()})
                for at, trees in self._keys_history
                if start < at < until
            ]
            if stop is None:
                counts.append((now, self._recent["count"]))
                keys.append((now, {key: tree["count"] for key, tree in self._keys.items()}))
        return {"counts": counts, "keys": keys}

    def close(self) -> None:
        """End it."""
        self._closed = True
        self._wanted.set()

    def _begin(self) -> None:
        with self._lock:
            self._asked = time.monotonic()
            alive = self._thread is not None and self._thread.is_alive()
            if alive or self._closed or not dask.config.get("distributed.worker.profile.enabled"):
                return
            self._thread = threading.Thread(target=self._run, name="treadle-profile", daemon=True)
            self._thread.start()

    def _run(self) -> None:
        def seconds(name: str) -> float:
            setting = dask.config.get(f"distributed.worker.profile.{name}")
            return max(float(parse_timedelta(setting, default="ms")), 0.001)

        interval, cycle = seconds("interval"), seconds("cycle")
        turn = time.monotonic() + cycle
        while not self._wanted.wait(interval):
            now = time.monotonic()
            with self._lock:
                if now - self._asked > _UNUSED:
                    self._turn()
                    self._thread = None
                    return
                self._sample()
                if now >= turn:
                    turn = now + cycle
                    self._turn()

    def _sample(self) -> None:
        running = self._running()
        if not running:
            return
        frames = sys._current_frames()
        for thread, key in running.items():
            frame = frames.get(thread)
            if frame is None:
                continue
            prefix = prefix_of(key)
            tree = self._keys.get(prefix)
            if tree is None:
                tree = self._keys[prefix] = profile.create()
            profile.process(frame, None, self._recent)
            profile.process(frame, None, tree)

    def _turn(self) -> None:
        """Begin the next entry of the history."""
        now = time.time()
        if self._recent["count"]:
            self._history.append((now, self._recent))
            self._keys_history.append((now, self._keys))
            self._recent = profile.create()
            self._keys = {}
