"""Transfers in the timeline of `treadle.trace`, and their timings."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from transfer_support import LIMIT, Peer, pair

import treadle

LARGE = np.arange(4_000_000.0)
STAGES = {"prepare", "serialise", "accept", "wire", "place", "total"}


def outer(events: list[dict], name: str) -> list[dict]:
    return [e for e in events if e["name"] == name and e.get("cat") == "transfer"]


def inner(events: list[dict], of: dict) -> dict[str, dict]:
    """The stages of a transfer: they are within it, on its track."""
    found = {}
    for event in events:
        if event is of or event.get("tid") != of["tid"] or event["ph"] != "X":
            continue
        if event["ts"] >= of["ts"] and event["ts"] + event["dur"] <= of["ts"] + of["dur"] + 0.002:
            found[event["name"]] = event
    return found


def test_both_sides_have_their_stages(tmp_path: Path) -> None:
    theirs = tmp_path / "theirs.json"
    ours = tmp_path / "ours.json"
    code = f"""
    import treadle
    with treadle.trace({str(theirs)!r}):
        conn.recv()
    """
    with Peer(code, prefetch=0) as peer:
        with treadle.trace(ours):
            peer.conn.send({"a": LARGE})
        peer.finish()
        address = peer.conn.address
    events = json.loads(ours.read_text())["traceEvents"]
    [sent] = outer(events, "send")
    assert sent["args"]["bytes"] > LARGE.nbytes
    assert sent["args"]["peer"] == address
    assert sent["args"]["MB/s"] > 0
    stages = inner(events, sent)
    assert stages.keys() == {"serialise", "prepare", "wait for accept", "wire"}
    names = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    assert names[sent["tid"]].startswith(f"to {address}")

    events = json.loads(theirs.read_text())["traceEvents"]
    [received] = outer(events, "receive")
    assert received["args"]["bytes"] == sent["args"]["bytes"]
    assert {"wire", "place"} <= inner(events, received).keys()


def test_transfers_that_are_only_started() -> None:
    with pair(prefetch=0) as (one, other), treadle.trace() as trace:
        started = [one.start_send(LARGE), one.start_send(1), one.start_send(LARGE)]
        started[2].cancel()
        other.recv(timeout=LIMIT)
        other.recv(timeout=LIMIT)
        started[0].result(LIMIT)
    assert len(outer(trace.events, "send")) == 2
    assert len(outer(trace.events, "receive")) == 2


def test_transfers_that_overlap_have_tracks_of_their_own() -> None:
    with pair() as (one, other), treadle.trace() as trace:
        started = [one.start_send(LARGE) for _ in range(3)]
        for each in started:
            other.recv(timeout=LIMIT)
            each.result(LIMIT)
    sent = outer(trace.events, "send")
    assert len({event["tid"] for event in sent}) == 3
    for event in sent:
        assert "wire" in inner(trace.events, event)


def test_batches_are_one_transfer() -> None:
    with pair() as (one, other), treadle.trace() as trace:
        one.send_many([b"x" * 100] * 50)
        received = 0
        while received < 50:
            received += len(other.recv_many(timeout=LIMIT))
    [sent] = outer(trace.events, "send")
    assert sent["args"]["bytes"] == 5000
    assert sum(e["args"]["bytes"] for e in outer(trace.events, "receive")) == 5000


def test_only_what_ends_inside_the_block() -> None:
    with pair() as (one, other):
        one.send(1)
        other.recv(timeout=LIMIT)
        with treadle.trace() as trace:
            pass
        one.send(1)
        other.recv(timeout=LIMIT)
    assert not outer(trace.events, "send")
    assert not outer(trace.events, "receive")


def test_last_timings() -> None:
    with pair(prefetch=0) as (one, other):
        assert one.last_timings is None
        started = one.start_send({"a": LARGE})
        other.recv(timeout=LIMIT)
        started.result(LIMIT)
        for timings in started.timings, other.last_timings:
            assert timings is not None
            assert timings.keys() == STAGES | {"bytes"}
            assert timings["bytes"] > LARGE.nbytes
            assert all(value >= 0 for value in timings.values())
            parts = sum(timings[stage] for stage in STAGES - {"total"})
            # Getting the memory is a part of `accept` as well as of `place`.
            assert parts <= timings["total"] + timings["place"] + 1e-3
        assert started.timings["serialise"] > 0  # type: ignore[index]
        assert other.last_timings["place"] > 0  # type: ignore[index]
        other.send(LARGE[:10])
        assert other.last_timings["bytes"] == pytest.approx(80, abs=20)  # type: ignore[index]
