"""``treadle bench transfer --trace``: both processes in one timeline."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from treadle.tracing import _clocks

__all__ = ["STEPS", "samples", "write"]

#: The steps of TensorFlow's ``RecvTensor`` as the published report counts them, and its ops, by our
#: stages.
STEPS = {
    "assign": "Assign",
    "send": "RecvTensor",
    "receive": "RecvTensor",
    "wait for accept": "1 rendezvous: the receiver is ready",
    "accept": "1 rendezvous: the receiver is ready",
    "prepare": "2 prepare the request",
    "wire": "3 the data on their way",
    "serialise": "4 serialise into a ByteBuffer",
    "place": "5 deserialise into the tensor",
}

# Questions for the peer's clock, before and after.
_ASKED = 20


def samples(ask: Callable[[], int]) -> list[_clocks.Sample]:
    """Ask for the peer's ``perf_counter_ns()`` some times."""
    found = []
    for _ in range(_ASKED):
        asked = time.perf_counter_ns()
        theirs = ask()
        found.append(_clocks.Sample(asked, theirs, time.perf_counter_ns()))
    return found


def write(
    path: str,
    own: tuple[int, list[dict[str, Any]]],
    peer: tuple[int, list[dict[str, Any]]],
    rounds: list[tuple[int, int]],
    known: list[_clocks.Sample],
) -> None:
    """Write the events of the worker and of the ps, with the clock of the worker.

    Parameters
    ----------
    own, peer
        When a process began to record, in nanoseconds of its clock, and its events.
    rounds
        When each assignment began and was acknowledged.
    known
        How the clocks differ.
    """
    origin, events = own
    clock = _clocks.Clock(known, turned=True)
    start, theirs = peer
    here = next((event["pid"] for event in events), 1)
    there = next((event["pid"] for event in theirs), here + 1)
    if there == here:
        # Of another host, by chance.
        there = here + 1
    for event in theirs:
        event["pid"] = there
        if "ts" in event:
            event["ts"] = (clock(start + event["ts"] * 1e3) - origin) / 1e3
    assigned: list[dict[str, Any]] = [
        {
            "name": "assign",
            "cat": "transfer",
            "ph": "X",
            "ts": (began - origin) / 1e3,
            "dur": (ended - began) / 1e3,
            "pid": here,
            "tid": 0,
            "args": {},
        }
        for began, ended in rounds
    ]
    names = [
        {"name": "process_name", "ph": "M", "pid": pid, "tid": 0, "args": {"name": name}}
        for pid, name in ((here, "worker"), (there, "ps"))
    ]
    names.append(
        {"name": "thread_name", "ph": "M", "pid": here, "tid": 0, "args": {"name": "assignments"}}
    )
    everything = [*names, *assigned, *events, *theirs]
    for event in everything:
        if event["ph"] == "X" and event["name"] in STEPS:
            event["args"] = {**event.get("args", {}), "step": STEPS[event["name"]]}
    trace = {
        "traceEvents": everything,
        "displayTimeUnit": "ms",
        "otherData": {"clocks may differ by µs": round(clock.error / 1e3, 3)},
    }
    Path(path).write_text(json.dumps(trace), encoding="utf-8")
