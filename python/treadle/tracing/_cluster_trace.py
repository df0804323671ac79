"""What :func:`treadle.trace` records of a cluster: asked for, and fetched, through a client."""

from __future__ import annotations

import itertools
import threading
import time
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from treadle.cluster._clusters import cluster_at
from treadle.common._ask import ask_now, notify
from treadle.tracing._clocks import Sample

if TYPE_CHECKING:
    from treadle.client._connected import Connected

__all__ = ["ClusterTrace", "Recording", "Spans"]

# Seconds that the scheduler has to answer, and that slow workers have to send the rest.
_ANSWER = 5.0
# Seconds between two looks whether they have.
_LOOK = 0.02
# Measurements of the difference between our clock and the scheduler's.
_MEASUREMENTS = 8
# What a client does is remembered up to so many calls.
_MOST = 1 << 16

_numbers = itertools.count(1)


class Spans:
    """The latest calls of a client: ``(name, thread, start, end, count)``."""

    def __init__(self) -> None:
        self.calls: deque[tuple[str, str, int, int, int]] = deque(maxlen=_MOST)
        self.dropped = 0

    def add(self, name: str, start: int, count: int) -> None:
        """Note a call that ends now; ``count``: of tasks, or keys."""
        if len(self.calls) == _MOST:
            self.dropped += 1
        thread = threading.current_thread().name
        self.calls.append((name, thread, start, time.perf_counter_ns(), count))


@dataclass
class Recording:
    """What was recorded of one cluster by way of one client. Times are nanoseconds."""

    #: The scheduler's id, address and process id.
    scheduler: str
    address: str
    pid: int = 0
    #: Whether the scheduler runs in this process, and so by its clock.
    here: bool = False
    #: By number: who says so (nobody: the scheduler), and what, encoded.
    parts: dict[int, tuple[int | None, bytes]] = field(default_factory=dict)
    #: By number: what is known of each worker.
    workers: dict[int, dict[str, Any]] = field(default_factory=dict)
    #: Our clock, the scheduler's clock, our clock.
    samples: list[Sample] = field(default_factory=list)
    #: Calls of the client: name, thread, start, end, count of tasks or keys.
    calls: list[tuple[str, str, int, int, int]] = field(default_factory=list)
    #: Events that the scheduler, or the client, had no room for.
    lost: int = 0
    notes: list[str] = field(default_factory=list)


class ClusterTrace:
    """Records the cluster of a client until :meth:`end`. Does not raise: it takes notes.

    Any thread may call it, that of an event loop too: it waits on the connection itself.
    """

    def __init__(self, client: Connected) -> None:
        self._client = client
        self._connection = client._usable("trace the cluster")
        info = self._connection.info
        address = self._connection.address
        self.recording = Recording(info["id"], address, here=cluster_at(address) is not None)
        self._spans = Spans()
        self._number = next(_numbers)
        self._since: int | None = None
        try:
            answer = self._ask(start=self._number)
            self._since, self._lost = answer["next"], answer["lost"]
            self.recording.pid = answer["pid"]
            self._measure()
        except Exception as error:
            self._note(f"the cluster is not traced: {error}")
            if self._since is None:
                self._stop()
        except BaseException:
            self._stop()
            raise
        client._recorders = (*client._recorders, self._spans)

    def _note(self, text: str) -> None:
        self.recording.notes.append(f"scheduler {self.recording.address}: {text}")

    def _ask(self, timeout: float = _ANSWER, **argument: Any) -> Any:
        return ask_now(self._connection, "trace", argument, timeout)

    def _stop(self) -> None:
        """Have the scheduler keep events no more: it does so once it takes calls again."""
        with suppress(Exception):  # the connection may be over
            notify(self._connection, "", "trace", {"stop": self._number})

    def _measure(self) -> None:
        for _ in range(_MEASUREMENTS):
            asked = time.perf_counter_ns()
            theirs = self._ask()["clock"]
            self.recording.samples.append(Sample(asked, theirs, time.perf_counter_ns()))

    def end(self) -> Recording:
        """Stop, and return what was recorded, with what workers send within a few seconds."""
        client, recording = self._client, self.recording
        client._recorders = tuple(spans for spans in client._recorders if spans is not self._spans)
        recording.calls = list(self._spans.calls)
        recording.lost = self._spans.dropped
        if self._since is None:
            return recording
        try:
            self._measure()
            self._fetch(self._ask(mark=True)["mark"])
        except Exception as error:
            self._note(f"what happened last is missing: {error}")
        finally:
            self._stop()
        return recording

    def _fetch(self, mark: int) -> None:
        """Get what there is until all workers have repeated the mark: that was all."""
        recording = self.recording
        until = time.monotonic() + _ANSWER
        while True:
            answer = self._ask(since=self._since)
            self._since = answer["next"]
            for number, worker, content in answer["parts"]:
                recording.parts[number] = (worker, content)
            recording.workers.update(answer["workers"])
            if answer["more"]:
                continue
            silent = [
                worker["about"]["name"]
                for worker in answer["workers"].values()
                if worker["mark"] < mark and not worker["gone"]
            ]
            if not silent or time.monotonic() > until:
                break
            # Also takes in what comes for others meanwhile.
            self._connection.wait(lambda: False, _LOOK)
        recording.lost += answer["lost"] - self._lost
        for name in silent:
            self._note(
                f"worker {name} has not answered within {_ANSWER:.0f} s: "
                "what it did last is missing"
            )
