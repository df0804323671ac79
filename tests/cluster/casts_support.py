"""Engines without views: a thread of each worker runs casts, and a client's end counts what arrives.

A cast's head is a pickled function (by name) of the native worker, the cast and its frames.
"""

from __future__ import annotations

import os
import pickle
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from distributed import get_worker

from client_support import SOON
from treadle.worker._service import Service

# Of an engine: the casts that it ran.
RAN: list[tuple[int, int]] = []
# An array of the engine's own.
KEPT: list[Any] = []
# And those that are to be interrupted.
INTERRUPTED: set[tuple[int, int]] = set()


def start_engine() -> None:
    """Start this worker's engine; run on each worker."""
    native = get_worker()._native
    RAN.clear()
    INTERRUPTED.clear()
    Service.interrupt_cast = _interrupted  # type: ignore[method-assign]
    # A cast that comes while this thread is between two would start the worker's own engine.
    Service.cast_came = _came  # type: ignore[method-assign]
    threading.Thread(target=_serve, args=(native,), name="engine", daemon=True).start()


def _came(_self: Any) -> None:
    pass


def _interrupted(_self: Any, client: int, number: int) -> None:
    INTERRUPTED.add((client, number))


def _serve(native: Any) -> None:
    while native.ended is None:
        cast = native.next_cast(0.2)
        if cast is None:
            continue
        client, number, frames = cast
        del cast
        RAN.append((client, number))
        try:
            result = pickle.loads(frames[0])(native, (client, number), frames[1:])
        except Exception as error:
            result = [pickle.dumps(error)]
        del frames
        native.finish_cast(client, number, result)
        del result


# What casts call


def identify(native: Any, _cast: Any, _frames: Any) -> list[bytes]:
    return [str(native.id).encode()]


def nothing(_native: Any, _cast: Any, _frames: Any) -> list[bytes]:
    return []


def add_up(_native: Any, _cast: Any, frames: Sequence[Any]) -> list[bytes]:
    return [str(int(np.frombuffer(frame, "u1").sum(dtype="u8"))).encode() for frame in frames]


def write(native: Any, _cast: Any, frames: Sequence[Any]) -> list[bytes]:
    """Write into what was sent, as engines may."""
    _head, buffer = frames
    array = np.frombuffer(buffer, "u1")
    before = int(array.sum(dtype="u8"))
    array[:] = native.id
    return [str(before).encode(), str(int(array.sum(dtype="u8"))).encode()]


def talk(native: Any, cast: Any, _frames: Any) -> list[bytes]:
    for step in range(3):
        native.cast_output(*cast, f"{native.id}.{step}".encode())
    return []


def ran(_native: Any, _cast: Any, _frames: Any) -> list[bytes]:
    return [pickle.dumps(RAN)]


def large(native: Any, _cast: Any, _frames: Any) -> list[Any]:
    return [np.full(1_000_000, native.id, "u1"), b"", b"end"]


def keep(_native: Any, _cast: Any, frames: Sequence[Any]) -> list[Any]:
    """Return an array that stays here."""
    KEPT[:] = [np.full(int(bytes(frames[0])), 1, "u1")]
    return [KEPT[0]]


def change(_native: Any, _cast: Any, _frames: Any) -> list[bytes]:
    KEPT[0][:] = 2
    return []


def wait_for(_native: Any, _cast: Any, frames: Sequence[Any]) -> list[bytes]:
    """Begin, and wait until a file is there."""
    path = bytes(frames[0]).decode()
    with open(f"{path}.{os.getpid()}", "w"):
        pass
    deadline = time.monotonic() + SOON
    while not os.path.exists(path) and time.monotonic() < deadline:
        time.sleep(0.005)
    return []


def until_interrupted(_native: Any, cast: Any, frames: Sequence[Any]) -> list[bytes]:
    """Begin, and wait for an interrupt."""
    with open(f"{bytes(frames[0]).decode()}/{os.getpid()}", "w"):
        pass
    deadline = time.monotonic() + SOON
    while cast not in INTERRUPTED and time.monotonic() < deadline:
        time.sleep(0.002)
    return [str(cast in INTERRUPTED).encode()]


class Caster:
    """A client's casts.

    Parameters
    ----------
    client
        Its workers' engines are started, unless another one has.
    """

    def __init__(self, client: Any, count: int, start: bool = True) -> None:
        if start:
            client.run(start_engine)
        self.connection = client._connection
        # By number and engine.
        self.results: dict[int, dict[int, tuple[str, list[bytes]]]] = defaultdict(dict)
        self.outputs: dict[int, list[tuple[int, bytes]]] = defaultdict(list)
        self.complete: set[int] = set()
        self.calls = 0
        self.connection.on_casts(self._arrived)
        self.engines = self.members(count)

    def members(self, count: int) -> list[int]:
        """Wait until there are so many engines."""
        self.wait(lambda: len(self.connection.members() or ()) == count)
        return [member[0] for member in self.connection.members()]

    def wait(self, done: Callable[[], bool]) -> None:
        assert self.connection.wait(done, SOON)

    def _arrived(self, arrivals: list[tuple[int, list[int], str, list[Any], bytes]]) -> None:
        self.calls += 1
        for number, engines, kind, frames, times in arrivals:
            assert len(times) == 16 * len(engines)
            if kind == "complete":
                assert engines == [-1]
                self.complete.add(number)
            elif kind == "output":
                (engine,) = engines
                self.outputs[number].append((engine, bytes(frames[0])))
            else:
                for engine in engines:
                    assert engine not in self.results[number]
                    self.results[number][engine] = (kind, [bytes(frame) for frame in frames])

    def cast(
        self, function: Callable[..., Any], *frames: Any, engines: Sequence[int] | None = None
    ) -> int:
        to = self.engines if engines is None else engines
        number: int = self.connection.cast(to, pickle.dumps(function), frames)
        return number

    def result(self, number: int) -> dict[int, tuple[str, list[bytes]]]:
        """Wait for what came of a cast, by engine."""
        self.wait(lambda: number in self.complete)
        return self.results.pop(number, {})

    def call(self, function: Callable[..., Any], *frames: Any, **kwargs: Any) -> dict[int, Any]:
        """Cast, and return the frames of the results, all of which are to be there."""
        result = self.result(self.cast(function, *frames, **kwargs))
        assert {kind for kind, _ in result.values()} <= {"finished"}, result
        return {engine: frames for engine, (_, frames) in result.items()}
