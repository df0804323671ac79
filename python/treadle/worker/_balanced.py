"""Tasks that run in an engine's namespace: what a load-balanced view submits."""

from __future__ import annotations

import pickle
from collections.abc import Callable, Iterable, Sequence
from typing import Any

from treadle.worker import _cast_reply
from treadle.worker._slots import worker_here

__all__ = ["Failed", "Outcome", "Payload", "map_part", "run"]


class Payload:
    """What an engine is to do, in frames that are not copied into a pickle."""

    __slots__ = ("frames",)

    def __init__(self, frames: Sequence[Any]) -> None:
        self.frames = list(frames)

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        if protocol < 5:
            return type(self), ([bytes(frame) for frame in self.frames],)
        return type(self), ([pickle.PickleBuffer(frame) for frame in self.frames],)


class Outcome(Payload):
    """The frames of a result, the engine that it is of, and when that began and ended."""

    __slots__ = ("engine", "times")

    def __init__(
        self,
        frames: Sequence[Any],
        engine: tuple[int, str] = (-1, ""),
        times: tuple[float, float] | None = None,
    ) -> None:
        super().__init__(frames)
        self.engine = engine
        self.times = times

    def __reduce_ex__(self, protocol: Any) -> tuple[Any, ...]:
        kind, (frames,) = super().__reduce_ex__(protocol)
        return kind, (frames, self.engine, self.times)


class Failed(Exception):
    """The task's function raised, and may be tried again."""

    def __init__(self, outcome: Outcome) -> None:
        super().__init__(outcome)
        self.outcome = outcome


def run(payload: Payload, name: str, retries: int) -> Outcome:
    """Do something in the engine of this worker.

    Raises
    ------
    Failed
        It failed, and there are ``retries``.
    """
    engine = worker_here.get().engine
    # The engine goes on using what it has; the value stays as it is.
    found, times = engine.run_task(name, payload.frames)
    frames = [bytes(frame) for frame in found]
    outcome = Outcome(frames, (engine.id, engine.uuid), times)
    if retries and _cast_reply.loads(frames[0])["status"] == "error":
        raise Failed(outcome)
    return outcome


def map_part(function: Callable[..., Any], *sequences: Iterable[Any]) -> list[Any]:
    """Call a function with each element of sequences."""
    return list(map(function, *sequences))
