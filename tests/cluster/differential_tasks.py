"""Functions that the workloads of `differential` run: they change, return and refuse their inputs."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import distributed
import numpy as np
import pandas as pd

from waiting import until


@dataclass
class Box:
    """A container of a class of one's own."""

    content: Any
    steps: int = 0

    def step(self, value: int) -> int:
        self.steps += value
        return self.steps


class Refused(Exception):
    """An error of a class of one's own."""

    def __init__(self, message: str, number: int) -> None:
        super().__init__(message, number)


def reached(value: Any) -> Any:
    """What can be written to in a value: the first such thing."""
    while True:
        if isinstance(value, Box):
            value = value.content
        elif isinstance(value, dict):
            value = next(iter(value.values()))
        elif isinstance(value, (tuple, list)) and not isinstance(value[0], (int, float)):
            value = value[0]
        else:
            return value


def first(value: Any) -> Any:
    value = reached(value)
    if isinstance(value, np.ndarray):
        return value.flat[0].item()
    if isinstance(value, pd.DataFrame):
        return value.iloc[0, 0].item()
    if isinstance(value, pd.Series):
        return value.iloc[0].item()
    return value[0] if len(value) else None


def change(value: Any, *_others: Any, **_named: Any) -> Any:
    """Write to a value; how often that was done to it."""
    target = reached(value)
    if isinstance(target, np.ndarray):
        target += 1
    elif isinstance(target, pd.DataFrame):
        target["x"] += 1
    elif isinstance(target, pd.Series):
        target.iloc[0] += 1
    elif isinstance(target, (list, bytearray)):
        target[0] += 1
    else:
        return "cannot be written to", type(target).__name__, len(target)
    return first(value)


def change_named(_number: Any, **named: Any) -> Any:
    return [change(value) for value in named.values()]


def change_and_return(value: Any, *_others: Any) -> Any:
    change(value)
    return value


def identity(value: Any, *_others: Any) -> Any:
    return value


def view(value: Any, *_others: Any) -> Any:
    """A part of a value that is no copy where there is such a thing."""
    target = reached(value)
    if isinstance(target, np.ndarray):
        return target.reshape(-1)[: max(1, target.size // 2)]
    return value


def same(one: Any, other: Any) -> bool:
    return reached(one) is reached(other)


def describe(value: Any, *_others: Any) -> Any:
    """What a task sees of a value."""
    target = reached(value)
    flags = target.flags.writeable if isinstance(target, np.ndarray) else None
    size = target.size if isinstance(target, np.ndarray) else len(target)
    return type(value).__name__, type(target).__name__, size, flags, first(value)


def add(*values: Any) -> Any:
    return sum(values)


def fail(kind: str, number: int = 0) -> Any:
    match kind:
        case "value":
            raise ValueError(f"no {number}")
        case "key":
            raise KeyError(f"no {number}")
        case "own":
            raise Refused("refused", number)
        case "chained":
            try:
                raise OSError(2, "gone")
            except OSError as error:
                raise RuntimeError(f"after that {number}") from error
        case "zero":
            return number / 0
        case "exit":
            raise SystemExit(number)
        case "unpicklable":
            error = ValueError("with a lock")
            error.lock = __import__("threading").Lock()  # type: ignore[attr-defined]
            raise error
        case "large":
            raise ValueError("x" * 100_000)
        case _:
            return lambda: kind  # a value that can be pickled, by value


def fail_times(directory: str, times: int, value: Any) -> Any:
    """Fail the first `times` times, and change the argument each time."""
    runs = Path(directory)
    (runs / f"{time.time_ns()}-{os.getpid()}").touch()
    found = change(value)
    if len(list(runs.iterdir())) <= times:
        raise RuntimeError("not yet")
    return found


def note(directory: str, name: str, seconds: float = 0.0) -> str:
    """Write down that this ran, in the order of beginning."""
    with open(Path(directory) / "log", "a") as log:
        log.write(f"{name}\n")
    time.sleep(seconds)
    return name


def hold(directory: str, name: str, seconds: float) -> int:
    """How many others were here at the same time, at most."""
    here = Path(directory) / f"here-{name}"
    here.touch()
    most = 0
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        most = max(most, len(list(Path(directory).glob("here-*"))))
        time.sleep(0.005)
    here.unlink()
    return most


def wait_for(directory: str) -> None:
    until((Path(directory) / "open").exists, "somebody opens the gate", 60)


def where(*_values: Any) -> Any:
    return distributed.get_worker().name


def nested(depth: int, width: int, secedes: bool) -> int:
    """Tasks that submit tasks."""
    if depth == 0:
        return 1
    client = distributed.get_client()
    futures = client.map(nested, [depth - 1] * width, width=width, secedes=secedes, pure=False)
    if secedes:
        distributed.secede()
        found = client.gather(futures)
        distributed.rejoin()
    else:
        found = client.gather(futures)
    return sum(found)


def nested_with_client(value: Any) -> Any:
    with distributed.worker_client() as client:
        scattered = client.scatter(value)
        return client.submit(change, scattered, pure=False).result()


def closure(value: Any) -> Callable[[int], Any]:
    return lambda _number: change(value)


def default(value: Any) -> Callable[..., Any]:
    def function(_number: int, value: Any = value) -> Any:
        return change(value)

    return function


def counter() -> Callable[[int], int]:
    count = 0

    def function(number: int) -> int:
        nonlocal count
        count += number
        return count

    return function


def bound(value: Any, _number: int) -> Any:
    return change(value)
