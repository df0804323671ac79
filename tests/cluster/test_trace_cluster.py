"""`treadle.trace` of a whole cluster, with real processes."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from dask.utils_test import inc

import treadle
from client_support import AGAINST, SOON, Gate, make_client
from process_support import send
from treadle.tracing import _cluster_trace as _tracing
from treadle.tracing import _trace
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST == "distributed", reason="it is Treadle's own")

Event = dict[str, Any]


def ones(n: int) -> np.ndarray:
    return np.ones(n)


def total(*arrays: np.ndarray) -> np.ndarray:
    return sum(arrays)


def pid(_: Any = None) -> int:
    return os.getpid()


def fail() -> None:
    raise ValueError("on purpose")


def of(trace: treadle.Trace, kind: str) -> list[Event]:
    return [event for event in trace.events if event.get("cat") == kind]


def names(trace: treadle.Trace, what: str = "process_name") -> dict[int, str]:
    return {e["pid"]: e["args"]["name"] for e in trace.events if e["name"] == what}


def about(trace: treadle.Trace) -> dict[str, Any]:
    (only,) = trace.about.values()
    return only


def bound(trace: treadle.Trace) -> float:
    """By how many microseconds times of two processes may be wrong."""
    error = about(trace)["clock error, microseconds"]["between any two processes, at most"]
    assert error is not None
    return error + 1


@pytest.fixture
def client() -> Iterator[treadle.Client]:
    with make_client() as client:
        yield client


def workers(client: treadle.Client) -> list[str]:
    return sorted(client.scheduler_info()["workers"])


def test_workers_are_rows_and_tasks_are_events(client: treadle.Client, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    pids = client.run(os.getpid)
    with treadle.trace(path) as trace:
        futures = [client.submit(pid, i, workers=[w]) for i, w in enumerate(workers(client) * 3)]
        failing = client.submit(fail)
        ran_in = client.gather(futures)
        assert failing.exception() is not None
    written = json.loads(path.read_text())
    assert written["traceEvents"] == trace.events
    assert written["otherData"]["clusters"] == trace.about
    events = {event["args"]["key"]: event for event in of(trace, "task")}
    assert set(events) == {f.key for f in [*futures, failing]}
    assert trace.tasks == len(events) == len(of(trace, "task"))
    for future, process in zip(futures, ran_in, strict=True):
        event = events[future.key]
        assert event["pid"] == process
        assert event["tid"] == 1  # each has one thread
        assert event["name"] == event["args"]["function"] == event["args"]["group"] == "pid"
        assert event["args"]["state"] == "finished"
        assert event["args"]["bytes"] > 0
        assert event["args"]["reads"] == []
    assert events[failing.key]["args"]["state"] == "raised"
    rows = names(trace)
    for process in pids.values():
        assert f"process {process}" in rows[process]
    assert sum("scheduler" in name for name in rows.values()) == 1
    assert rows[os.getpid()].startswith("client")
    assert trace.task_seconds > 0


def test_odd_keys(client: treadle.Client, tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    keys: list[Any] = ["", "<>", (), (float("nan"), 1), (("a", 1), 2)]

    def refuse(constant: str) -> None:
        raise AssertionError(f"JSON has no {constant}")

    with treadle.trace(path) as trace:
        futures = [client.submit(inc, 1, key=key) for key in keys]
        assert client.gather(futures) == [2] * len(keys)
    written = json.loads(path.read_text(), parse_constant=refuse)
    assert written["traceEvents"] == trace.events
    groups = {event["args"]["key"]: event["args"]["group"] for event in of(trace, "task")}
    assert set(groups) == set(map(str, keys))
    assert groups["()"] == groups[""] == groups["<>"] == "Other"
    drawn = treadle.progress(futures, notebook=True)._repr_html_()
    assert "<td>Other</td>" in drawn


def test_the_client_and_the_scheduler_are_seen(client: treadle.Client) -> None:
    with treadle.trace() as trace:
        futures = client.map(inc, range(50))
        client.gather(futures)
        client.get({"a": (inc, 1), "b": (inc, "a")}, "b")
        # Longer than the scheduler's tick.
        client.submit(time.sleep, 0.3).result()
    calls = Counter((event["name"], event["args"]["count"]) for event in of(trace, "client"))
    assert calls["submit", 50] == calls["gather", 50] == 1
    assert calls["submit graph", 2] == 1
    taken = of(trace, "scheduler")
    assert sum(event["args"]["tasks"] for event in taken) == trace.tasks == 53
    assert {event["args"]["client"] for event in taken} == {client.id}
    counters = {event["name"] for event in trace.events if event["ph"] == "C"}
    assert counters == {
        "tasks by state",
        "tasks at workers",
        "messages a second",
        "bytes of values",
    }


def test_an_effect_never_starts_before_its_cause(client: treadle.Client) -> None:
    one, other = workers(client)
    with treadle.trace() as trace:
        chain = [client.submit(ones, 20_000, workers=[one])]
        for step in range(60):
            where = other if step % 2 == 0 else one
            chain.append(client.submit(total, chain[-1], workers=[where]))
        chain[-1].result()
    events = {event["args"]["key"]: event for event in of(trace, "task")}
    sent = {e["args"]["key"]: e for e in of(trace, "transfer") if e["name"] == "serialise"}
    come = {e["args"]["key"]: e for e in of(trace, "transfer") if e["name"] == "fetch"}
    slack = bound(trace)
    places = set()
    for before, after in pairwise(chain):
        cause, effect = events[before.key], events[after.key]
        places.add((cause["pid"], effect["pid"]))
        assert effect["ts"] >= cause["ts"] + cause["dur"] - slack
        assert effect["args"]["reads"] == [before.key]
        fetched, served = come[before.key], sent[before.key]
        assert fetched["pid"] == effect["pid"]
        assert served["pid"] == cause["pid"]
        assert fetched["args"]["bytes"] >= 160_000
        assert fetched["ts"] + fetched["dur"] >= served["ts"] - slack
        assert effect["ts"] >= fetched["ts"] + fetched["dur"] - slack
    assert len(places) == 2
    submits = [event["ts"] for event in of(trace, "client") if event["name"] == "submit"]
    assert min(event["ts"] for event in events.values()) >= min(submits) - slack
    # What the clocks may be wrong by says something about the order of this.
    first, last = events[chain[0].key], events[chain[-1].key]
    assert slack < last["ts"] - first["ts"]


def test_where_a_value_came_from(client: treadle.Client) -> None:
    one, other = workers(client)
    info = client.scheduler_info()["workers"]
    with treadle.trace() as trace:
        value = client.submit(ones, 100_000, workers=[one])
        client.submit(total, value, workers=[other]).result()
    fetch = next(e for e in of(trace, "transfer") if e["name"] == "fetch")
    assert fetch["args"]["key"] == value.key
    assert fetch["args"]["worker"] == str(info[one]["name"])
    tracks = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace.events
              if e["name"] == "thread_name"}  # fmt: skip
    assert tracks[fetch["pid"], fetch["tid"]] == f"from worker {info[one]['name']}"


def test_a_cluster_that_begins_and_ends_in_the_block() -> None:
    with treadle.trace() as trace:
        with make_client() as client:
            client.gather(client.map(inc, range(10)))
        treadle.get({"x": (inc, 1)}, "x")
    assert trace.tasks == 11
    joined = [event["name"] for event in of(trace, "joined")]
    assert sorted(joined) == ["worker 0 joined", "worker 1 joined"]
    assert len({event["pid"] for event in of(trace, "task")}) >= 2


def test_threads_of_this_process() -> None:
    with treadle.Client(threads_per_worker=2) as client, treadle.trace() as trace:
        client.gather(client.map(inc, range(10)))
    assert trace.tasks == 10
    rows = names(trace)
    assert sorted(name.split(" ")[0] for name in rows.values()) == [
        "client",
        "scheduler",
        "worker",
    ]


def test_two_clients_of_one_cluster_make_one_trace(client: treadle.Client) -> None:
    address = client.scheduler.address
    with treadle.Client(address, set_as_default=False) as second, treadle.trace() as trace:
        client.gather(client.map(inc, range(10)))
        second.gather(second.map(inc, range(100, 110)))
    assert trace.tasks == 20
    assert len(trace.about) == 1
    keys = [event["args"]["key"] for event in of(trace, "task")]
    assert len(set(keys)) == 20


class Called:
    """A client with a call of one thread."""

    def __init__(self, address: str, thread: str) -> None:
        self.address, self.thread = address, thread

    def trace_cluster(self) -> Called:
        return self

    def end(self) -> _tracing.Recording:
        now = time.perf_counter_ns()
        call = ("gather", self.thread, now - 1_000_000_000, now, 1)
        return _tracing.Recording(self.address, self.address, calls=[call])


def test_clients_of_one_process_do_not_share_a_row() -> None:
    called = [Called(*names) for names in [("one", "a"), ("one", "b"), ("two", "c"), ("two", "c")]]
    for one in called:
        _trace.attach(one)
    try:
        with treadle.trace() as trace:
            pass
    finally:
        for one in called:
            _trace.detach(one)
    tracks = [e for e in trace.events if e["name"] == "thread_name" and e["pid"] == os.getpid()]
    drawn = {e["tid"]: e["args"]["name"] for e in tracks}
    assert len(tracks) == len(drawn) == 4
    assert sorted(drawn.values()) == ["client, a", "client, b", "client, c", "client, c"]
    assert {event["tid"] for event in of(trace, "client")} == set(drawn)


def test_one_trace_within_another(client: treadle.Client) -> None:
    with treadle.trace() as outer:
        client.submit(inc, 1).result()
        # More than the clocks may be wrong by.
        time.sleep(0.5)
        with treadle.trace() as inner:
            client.submit(inc, 2).result()
            time.sleep(0.5)
        client.submit(inc, 3).result()
    assert outer.tasks == 3
    assert inner.tasks == 1


def ask(client: treadle.Client, **argument: Any) -> Any:
    answers: list[Any] = []
    client._connection.call("", "trace", argument, lambda *answer: answers.append(answer))
    client._block(lambda: bool(answers), SOON)
    result, error = answers[0]
    assert error is None, error
    return result


def test_nothing_is_kept_while_nobody_traces(client: treadle.Client) -> None:
    with treadle.trace() as trace:
        client.submit(inc, 1).result()
    client.gather(client.map(inc, range(100, 150)))
    answer = ask(client, since=0)
    assert answer["parts"] == []
    assert answer["workers"] == {}
    assert client._recorders == ()
    assert trace.tasks == 1


def test_a_client_that_leaves_traces_no_more(client: treadle.Client) -> None:
    second = treadle.Client(client.scheduler.address, set_as_default=False)
    second.trace_cluster()
    assert ask(client, since=0)["workers"]
    second.close()
    until(lambda: not ask(client, since=0)["workers"])


def test_what_a_dead_worker_had_sent_is_there(client: treadle.Client, gate: Gate) -> None:
    one = workers(client)[0]
    name = str(client.scheduler_info()["workers"][one]["name"])
    victim = client.run(os.getpid, workers=[one])[one]
    with treadle.trace() as trace:
        before = client.map(inc, range(20), workers=[one])
        client.gather(before)
        held = client.submit(gate.wait, workers=[one], allow_other_workers=True, key="held")
        until(lambda: b"held" in b"".join(p[2] for p in ask(client, since=0)["parts"]))
        os.kill(victim, signal.SIGKILL)
        gate.open()
        held.result()
    keys = {event["args"]["key"] for event in of(trace, "task") if event["pid"] == victim}
    assert {future.key for future in before} <= keys
    (lost,) = [event for event in of(trace, "lost") if event["ph"] == "i"]
    assert lost["name"] == f"worker {name} lost: signal 9 ended it"
    (unfinished,) = [event for event in of(trace, "lost") if event["ph"] == "X"]
    assert unfinished["args"]["key"] == "held"
    assert unfinished["pid"] == victim
    end = unfinished["ts"] + unfinished["dur"]
    assert end == pytest.approx(lost["ts"], abs=1)
    (again,) = [event for event in of(trace, "task") if event["args"]["key"] == "held"]
    assert again["args"]["attempt"] > unfinished["args"]["attempt"]
    assert again["ts"] + again["dur"] >= end - bound(trace)
    # Who is dead is not waited for.
    assert about(trace)["notes"] == []


def test_a_worker_that_does_not_answer_is_named(
    client: treadle.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(_tracing, "_ANSWER", 8.0)
    one, other = workers(client)
    name = client.scheduler_info()["workers"][one]["name"]
    process = client.run(os.getpid, workers=[one])[one]
    try:
        with treadle.trace() as trace:
            client.submit(inc, 1, workers=[other]).result()
            send(process, signal.SIGSTOP)
    finally:
        os.kill(process, signal.SIGCONT)
    (note,) = about(trace)["notes"]
    assert f"worker {name} has not answered" in note
    assert trace.tasks == 1


def test_a_cluster_that_ends_first_is_noted(tmp_path: Path) -> None:
    client = make_client()
    with treadle.trace(tmp_path / "trace.json") as trace:
        client.submit(inc, 1).result()
        client._connection.close()
    assert "what happened last is missing" in about(trace)["notes"][0]
    client.close()


def test_the_end_waits_for_a_client_that_leaves_at_the_same_moment() -> None:
    leaving = threading.Event()

    class Leaving:
        def trace_cluster(self) -> Leaving:
            return self

        def end(self) -> _tracing.Recording:
            leaving.set()
            time.sleep(0.2)
            return _tracing.Recording("Scheduler-1", "treadle://127.0.0.1:1")

    client = Leaving()
    _trace.attach(client)
    with treadle.trace() as trace:
        thread = threading.Thread(target=_trace.detach, args=(client,))
        thread.start()
        assert leaving.wait(SOON)
    thread.join(SOON)
    assert list(trace.about) == ["treadle://127.0.0.1:1"]


async def test_in_a_coroutine() -> None:
    async with treadle.Client(workers=2, asynchronous=True) as client:
        async with treadle.trace() as trace:
            await client.gather(client.map(inc, range(10)))
        with treadle.trace() as plain:
            await client.gather(client.map(inc, range(100, 110)))
    assert trace.tasks == plain.tasks == 10
    calls = [event["name"] for event in of(trace, "client")]
    assert "submit" in calls
    assert "gather" in calls


@pytest.fixture
def remote(tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler in a process of its own, with two workers."""
    secret = tmp_path / "secret"
    secret.touch(mode=0o600)
    secret.write_text("a secret of this test alone")
    processes: list[subprocess.Popen[str]] = []

    def start(*arguments: str) -> str:
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", *arguments],
            env={
                **os.environ,
                "TREADLE_SECRET_FILE": str(secret),
                "PYTHONPATH": os.pathsep.join(sys.path),
            },
            stdout=subprocess.PIPE,
            text=True,
        )
        processes.append(process)
        assert process.stdout is not None
        for line in process.stdout:
            if line.startswith("listening at "):
                return line.removeprefix("listening at ").strip()
        raise AssertionError(f"treadle {arguments[0]} does not start")

    try:
        address = start("scheduler", "--port", "0")
        for name in ("one", "two"):
            start("worker", address, "--name", name, "--nthreads", "1")
        yield address
    finally:
        for process in processes:
            process.kill()
            process.communicate(timeout=SOON)


def test_a_scheduler_elsewhere(remote: str, tmp_path: Path) -> None:
    secret = (tmp_path / "secret").read_text()
    with treadle.Client(remote, secret=secret) as client:
        client.wait_for_workers(2)
        with treadle.trace() as trace:
            one, other = workers(client)
            first = client.submit(ones, 20_000, workers=[one])
            second = client.submit(total, first, workers=[other])
            second.result()
    events = {event["args"]["key"]: event for event in of(trace, "task")}
    cause, effect = events[first.key], events[second.key]
    slack = bound(trace)
    assert effect["ts"] >= cause["ts"] + cause["dur"] - slack
    submitted = min(event["ts"] for event in of(trace, "client") if event["name"] == "submit")
    assert cause["ts"] >= submitted - slack
    errors = about(trace)["clock error, microseconds"]
    assert errors["client to scheduler"] > 0
    assert {"worker one", "worker two"} <= set(errors)
    assert [name.split(" (")[0] for name in names(trace).values() if "worker" in name] == [
        "worker one",
        "worker two",
    ]


def test_a_scheduler_refuses_nonsense(client: treadle.Client) -> None:
    answers: list[Any] = []
    call: Callable[..., None] = client._connection.call
    call("", "trace-batch", (1, 2), lambda *answer: answers.append(answer))
    client._block(lambda: bool(answers), SOON)
    assert answers[0][1] is not None
    assert client.submit(inc, 1).result() == 2


class Slow:
    """A client, and its connection, whose scheduler answers some calls only."""

    address = "treadle://192.0.2.1:1"
    info: ClassVar[dict[str, Any]] = {"id": "Scheduler-1"}
    _recorders: tuple[Any, ...] = ()

    def __init__(self, answers: int) -> None:
        self.answers = answers
        self.asked: list[dict[str, Any]] = []

    def _usable(self, _what: str) -> Slow:
        return self

    def call(self, _node: str, _operation: str, argument: Any, done: Callable[..., None]) -> None:
        self.asked.append(argument)
        if len(self.asked) <= self.answers:
            done({"next": 0, "lost": 0, "pid": 1, "clock": 0}, None)

    def wait(self, done: Callable[[], bool], _timeout: float) -> bool:
        return done()


@pytest.mark.parametrize("answers", [0, 1, 9], ids=["none", "the start", "until the end"])
def test_a_slow_scheduler_is_told_to_stop(answers: int) -> None:
    slow = Slow(answers)
    recording = _tracing.ClusterTrace(slow).end()
    number = slow.asked[0]["start"]
    assert slow.asked[-1] == {"stop": number}
    assert sum("stop" in argument for argument in slow.asked) == 1
    assert "has not answered" in recording.notes[0]
