"""A sampling profiler of a worker's tasks: always, and more often while somebody asks for what it finds."""

from __future__ import annotations

import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextlib import suppress
from typing import Any

import dask
from dask.utils import parse_timedelta
from distributed import profile

from treadle.common._groups import prefix_of
from treadle.worker._places import Places

__all__ = ["Profiler"]

# Seconds after the last question until it stops: nobody looks at a page for so long.
_UNUSED = 600.0
# Seconds between two looks while nobody asks: as long as tasks run, and at most.
_CALM = 0.05
_IDLE = 0.5
# Seconds after which what was found is told.
_TELL = 5.0
# Seconds that one look stands for at most: the process may have been stopped.
_LONGEST = 1.0
# Seconds until the thread has ended: it may wait for the interpreter.
_PATIENCE = 2.0
# Cycles that are kept.
_CYCLES = 3600


class Profiler:
    """Samples the Python frames of the tasks that run, in a thread of its own.

    Where it :meth:`begins <begin>`, it looks twenty times a second. From the first question to ten minutes after
    the last one it looks as often, and keeps as much, as the settings ``distributed.worker.profile`` say:
    ``interval`` between samples, ``cycle`` for one entry of the history. ``enabled`` is for both.

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
        self._asked = -_UNUSED
        self._places: Places | None = None
        self._tell: Callable[[int, list[tuple[int, str, int]]], None] | None = None
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
        self._begin(asked=True)
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
        self._begin(asked=True)
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

    def begin(self, tell: Callable[[int, list[tuple[int, str, int]]], None]) -> None:
        """Look always, and tell what was found every few seconds; see ``Worker.sampled``."""
        self._tell = tell
        self._places = Places()
        self._begin(asked=False)

    def close(self) -> None:
        """End it."""
        self._closed = True
        self._wanted.set()
        with self._lock:
            thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(_PATIENCE)

    def _begin(self, *, asked: bool) -> None:
        with self._lock:
            if asked:
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
        before = time.monotonic()
        turn, told = before + cycle, before
        pause = 0.0
        while True:
            with self._lock:
                now = time.monotonic()
                is_asked = now - self._asked <= _UNUSED
                if not is_asked:
                    self._turn()
                    if self._tell is None:
                        self._thread = None
                        return
                found = self._sample(is_asked, now - before)
                before = now
                if is_asked and now >= turn:
                    turn = now + cycle
                    self._turn()
            if now - told >= _TELL:
                self._tell_all(told)
                told = now
            pause = min(max(_CALM, 0.0 if found else 2 * pause), _IDLE)
            if self._wanted.wait(interval if is_asked else pause):
                self._tell_all(told)
                return

    def _tell_all(self, since: float) -> None:
        """Tell what was found; a worker that has ended hears nothing."""
        if self._tell is None or self._places is None:
            return
        if places := self._places.take():
            with suppress(Exception):
                self._tell(int(since * 1e9), places)

    def _sample(self, is_asked: bool, passed: float) -> bool:
        """Look once; return whether a task ran."""
        running = self._running()
        if not running:
            return False
        frames = sys._current_frames()
        # The caller's own frame has them in turn: they would keep what all threads refer to until the garbage
        # collector comes.
        frames.pop(threading.get_ident(), None)
        for thread, key in running.items():
            frame = frames.get(thread)
            if frame is None:
                continue
            prefix = prefix_of(key)
            if self._places is not None:
                self._places.add(prefix, frame, min(passed, _LONGEST))
            if not is_asked:
                continue
            tree = self._keys.get(prefix)
            if tree is None:
                tree = self._keys[prefix] = profile.create()
            profile.process(frame, None, self._recent)
            profile.process(frame, None, tree)
        return True

    def _turn(self) -> None:
        """Begin the next entry of the history."""
        now = time.time()
        if self._recent["count"]:
            self._history.append((now, self._recent))
            self._keys_history.append((now, self._keys))
            self._recent = profile.create()
            self._keys = {}
