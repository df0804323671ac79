"""Casts to the engines of worker processes, over the broadcast plane, without views."""

from __future__ import annotations

import os
import pickle
import signal
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import casts_support as engine
from casts_support import Caster
from client_support import AGAINST, client_class, make_client
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST == "distributed", reason="distributed has no casts")

COUNT = 5


@pytest.fixture(scope="module")
def shared() -> Iterator[Caster]:
    with make_client(COUNT) as client:
        yield Caster(client, COUNT)


def test_every_engine_answers_once(shared: Caster) -> None:
    assert len(shared.engines) == COUNT
    expected = {id_: [str(id_).encode()] for id_ in shared.engines}
    for _ in range(10):
        assert shared.call(engine.identify) == expected


def test_some_engines_and_none(shared: Caster) -> None:
    some = shared.engines[1::2]
    assert sorted(shared.call(engine.identify, engines=some)) == sorted(some)
    assert shared.call(engine.identify, engines=[]) == {}


@pytest.mark.parametrize("size", [0, 1, 50_000, 60_000, 70_000, 1 << 20, 20 << 20])
def test_frames_arrive_as_they_were_sent(shared: Caster, size: int) -> None:
    frames = [np.arange(size, dtype="u1"), b"abc", np.ones((3, 4))]
    sums = [str(int(np.frombuffer(frame, "u1").sum(dtype="u8"))).encode() for frame in frames]
    results = shared.call(engine.add_up, *frames)
    assert list(results.values()) == [sums] * COUNT


@pytest.mark.parametrize("size", [1000, 3 << 20])
def test_what_an_engine_writes_is_its_own(shared: Caster, size: int) -> None:
    array = np.ones(size, "u1")
    # Buffers come after what says how to read them, which is bytes if it is short.
    results = shared.call(engine.write, b"head", array)
    expected = {id_: [str(size).encode(), str(id_ * size).encode()] for id_ in shared.engines}
    assert results == expected
    assert (array == 1).all()


def test_the_payload_leaves_the_client_once(shared: Caster) -> None:
    size = 8 << 20
    shared.call(engine.nothing)

    def traffic() -> list[int]:
        before = shared.connection.cast_traffic()
        shared.call(engine.add_up, np.ones(size, "u1"))
        after = shared.connection.cast_traffic()
        return [now - then for now, then in zip(after, before, strict=True)]

    def is_little() -> bool:
        found[:] = traffic()
        messages, sent, passed, came, received = found
        # As shared memory, and some words.
        is_once = size <= passed < size + 4096 and sent < 4096 and messages < 10
        return is_once and 0 < came < 10 and 0 < received < 4096

    found: list[int] = []
    # Timers add messages, and have bytes sent where the way for shared memory comes late.
    until(is_little, lambda: str(found))


def test_a_buffer_may_change_as_soon_as_it_was_cast(shared: Caster) -> None:
    array = np.ones(2 << 20, "u1")
    number = shared.cast(engine.add_up, array)
    array[:] = 0
    results = shared.result(number)
    assert {tuple(frames) for _, frames in results.values()} == {(str(2 << 20).encode(),)}


def test_large_results(shared: Caster) -> None:
    for id_, frames in shared.call(engine.large).items():
        assert frames == [bytes([id_]) * 1_000_000, b"", b"end"]


@pytest.mark.parametrize("size", [100, 500_000, 5 << 20])
def test_a_result_is_as_it_was_when_the_cast_finished(shared: Caster, size: int) -> None:
    for _ in range(3):
        numbers = [shared.cast(engine.keep, str(size).encode()), shared.cast(engine.change)]
        for _kind, frames in shared.result(numbers[0]).values():
            assert frames == [b"\1" * size]
        shared.result(numbers[1])


def test_outputs_come_before_the_result(shared: Caster) -> None:
    number = shared.cast(engine.talk)
    shared.result(number)
    outputs = shared.outputs.pop(number)
    for id_ in shared.engines:
        own = [text for whose, text in outputs if whose == id_]
        assert own == [f"{id_}.{step}".encode() for step in range(3)]


def test_casts_run_in_order_though_trees_differ(shared: Caster) -> None:
    sizes = [10, 200_000, 0, 2 << 20]
    numbers = [
        shared.cast(engine.nothing, bytes(sizes[i % 4]), engines=shared.engines[i % 3 :])
        for i in range(60)
    ]
    assert numbers == sorted(set(numbers))
    for number in numbers:
        shared.result(number)
    me = shared.connection.id
    for frames in shared.call(engine.ran).values():
        order = [number for client, number in pickle.loads(frames[0]) if client == me]
        assert order == sorted(set(order))
        assert len(order) >= 20


def test_more_casts_than_may_be_unsettled(shared: Caster) -> None:
    numbers = [shared.cast(engine.identify) for _ in range(700)]
    for number in numbers:
        assert len(shared.result(number)) == COUNT


def test_aborted_casts_are_not_run(shared: Caster, tmp_path: Path) -> None:
    first = shared.cast(engine.until_interrupted, str(tmp_path).encode())
    until(lambda: len(list(tmp_path.iterdir())) == COUNT, "all engines have begun")
    second, third = shared.cast(engine.identify), shared.cast(engine.identify)
    shared.connection.abort([second])
    # It goes the same ways: when it has come, the one before has, too.
    shared.connection.abort([first], interrupt=True)
    assert list(shared.result(first).values()) == [("finished", [b"True"])] * COUNT
    assert list(shared.result(second).values()) == [("aborted", [])] * COUNT
    assert {kind for kind, _ in shared.result(third).values()} == {"finished"}


def test_unknown_engines(shared: Caster) -> None:
    with pytest.raises(ValueError, match="not known"):
        shared.connection.cast([10_000], b"", [])
    shared.call(engine.identify)


def test_two_clients() -> None:
    with make_client(3) as one, client_class()(one.scheduler.address) as two:
        casters = [Caster(one, 3), Caster(two, 3, start=False)]
        numbers = [caster.cast(engine.identify) for _ in range(30) for caster in casters]
        for i, number in enumerate(numbers):
            assert len(casters[i % 2].result(number)) == 3
        # One leaves, with casts that nobody hears of.
        casters[1].cast(engine.nothing, bytes(5 << 20))
        two.close()
        assert len(casters[0].call(engine.identify)) == 3


def test_a_worker_that_is_killed_is_lost(tmp_path: Path) -> None:
    with make_client(4) as client:
        caster = Caster(client, 4)
        pids = {int(frames[0]): 0 for frames in caster.call(engine.identify).values()}
        by_address = {member[2]: member[0] for member in caster.connection.members()}
        for address, pid in client.run(os.getpid).items():
            pids[by_address[address]] = pid
        gate = tmp_path / "gate"
        number = caster.cast(engine.wait_for, str(gate).encode(), bytes(3 << 20))
        until(lambda: len(list(tmp_path.iterdir())) == 4, "all engines have begun")
        victim = caster.engines[0]
        os.kill(pids[victim], signal.SIGKILL)
        gate.touch()
        results = caster.result(number)
        kind, (reason,) = results.pop(victim)
        assert kind == "lost"
        assert b"signal 9" in reason
        assert {kind for kind, _ in results.values()} == {"finished"}
        assert len(results) == 3
        # Whoever takes its place is another engine.
        others = [id_ for id_ in caster.members(4) if id_ not in caster.engines]
        assert len(others) == 1
        kind, _ = caster.result(caster.cast(engine.identify, engines=[victim]))[victim]
        assert kind == "lost"


def test_a_payload_beyond_the_memory_limit_is_refused() -> None:
    with make_client(2, memory_limit="600MB") as client:
        caster = Caster(client, 2)
        results = caster.result(caster.cast(engine.nothing, np.empty(700_000_000, "u1")))
        for kind, (reason,) in results.values():
            assert kind == "refused"
            assert b"memory limit" in reason
        assert len(results) == 2
        assert len(caster.call(engine.identify)) == 2


def test_in_this_process() -> None:
    with client_class()() as client:
        caster = Caster(client, 1)
        assert caster.call(engine.add_up, np.ones(2 << 20, "u1")) == {
            caster.engines[0]: [str(2 << 20).encode()]
        }


def test_nobody_casts_through_a_connection_that_has_ended(new_client) -> None:
    client = new_client(workers=1)
    assert client[:].apply_sync(int) == [0]
    connection = client._connection
    members = [number for number, *_ in connection.members()]
    connection.close(5.0)
    with pytest.raises(ValueError, match="the client is closed"):
        connection.cast(members, b"", [])
