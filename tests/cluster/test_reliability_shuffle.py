"""Shuffles whose workers are killed, paused or retired: every row once, in order, and nothing is left.

TREADLE_ROUNDS says how many random rounds there are, TREADLE_SEED with which the first one begins. A
round that fails names its seed.
"""

from __future__ import annotations

import os
import random
import signal
import threading
import time

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from dask.dataframe.shuffle import partitioning_index
from numpy.testing import assert_array_equal
from pandas.testing import assert_frame_equal

from client_support import AGAINST, SOON, pass_gate
from process_support import alive, kill, send
from reliability_support import connected, processes
from shuffle_support import table
from waiting import until

ROUNDS = int(os.environ.get("TREADLE_ROUNDS", "50"))
SEED = int(os.environ.get("TREADLE_SEED", "0"))
# Rounds that share a cluster.
LEG = 10
INPUTS, OUTPUTS = 12, 10

pytestmark = [
    pytest.mark.skipif(
        AGAINST != "treadle", reason="distributed's shuffles start again, as a whole"
    ),
    pytest.mark.usefixtures("quiet"),
    pytest.mark.timeout(6 * SOON, method="signal"),
]


@pytest.fixture(autouse=True)
def p2p():
    with dask.config.set({"dataframe.shuffle.method": "p2p", "array.rechunk.method": "p2p"}):
        yield


@pytest.fixture
def client(new_client):
    return new_client(workers=3, threads_per_worker=2, worker_timeout=6)


def here():
    return str(os.getpid())


class Shuffle:
    """A shuffle of a table, and its outputs."""

    def __init__(
        self, client, frame, *, inputs=INPUTS, outputs=OUTPUTS, gates=None, change=None, after=None
    ):
        self.client, self.frame, self.outputs = client, frame, outputs
        part = part_of(frame, inputs, gates or {})
        part = part if change is None else change(part)
        parts = dd.from_map(
            part, range(inputs), meta=frame.iloc[:0], enforce_metadata=change is None
        )
        shuffled = parts.shuffle("key", npartitions=outputs)
        if after is not None:
            shuffled = shuffled.map_partitions(after, meta=shuffled._meta)
        self.futures = client.compute(shuffled.to_delayed())

    def check(self):
        numbers = partitioning_index(self.frame[["key"]].astype("f8"), self.outputs)
        found = self.client.gather(self.futures)
        for number, output in enumerate(found):
            assert_frame_equal(output, self.frame[numbers == number])
        del self.futures, found
        check_nothing_is_left(self.client)


class part_of:
    """An input for each number. One that has a gate waits there, and has no rows."""

    def __init__(self, frame, inputs, gates):
        self.frame, self.inputs, self.gates = frame, inputs, gates

    def __call__(self, number):
        numbers = [one for one in range(self.inputs) if one not in self.gates]
        if number in self.gates:
            return pass_gate(self.gates[number], self.frame.iloc[:0], here())
        places = np.array_split(np.arange(len(self.frame)), len(numbers))
        return self.frame.iloc[places[numbers.index(number)]]


def left(dask_worker):
    stats = dask_worker._native.shuffle_stats()
    return stats["leftovers"] + stats["held"] + stats["on_disk"]


def check_nothing_is_left(client):
    until(lambda: not any(client.run(left).values()), "workers have nothing of shuffles")
    for pid in processes(client).values():
        if alive(pid):
            for name in os.listdir(f"/proc/{pid}/fd"):
                try:
                    target = os.readlink(f"/proc/{pid}/fd/{name}")
                except FileNotFoundError:
                    continue
                assert "shuffle" not in target, target


def arrivals_elsewhere(gate, pids):
    """Somebody of these who has not arrived at a gate."""
    return next(pid for pid in pids if str(pid) not in gate.arrivals())


class After:
    """Outputs wait at a gate."""

    def __init__(self, gate):
        self.gate = gate

    def __call__(self, output):
        return pass_gate(self.gate, output, here())


def transferred(client):
    return sum(client.run(transfers_here).values())


def transfers_here(dask_worker):
    return dask_worker._native.shuffle_stats()["transfers"]


def test_a_worker_is_killed_in_transfers(client, gates):
    gate = gates()
    shuffle = Shuffle(client, table(), gates={INPUTS - 1: gate})
    until(lambda: gate.arrived() and transferred(client) >= INPUTS - 1, "all but one have ended")
    kill(next(iter(connected(client).values())))
    gate.open()
    shuffle.check()


def test_a_worker_is_killed_while_the_barrier_waits_for_it(client, gates):
    gate = gates()
    # The last input has no rows, so that its transfer waits for nobody.
    shuffle = Shuffle(client, table(), gates={INPUTS - 1: gate})
    until(lambda: gate.arrived() and transferred(client) >= INPUTS - 1, "all but one have ended")
    stopped = arrivals_elsewhere(gate, connected(client).values())
    send(stopped, signal.SIGSTOP)
    gate.open()
    # Long enough for the barrier to ask, and not for the scheduler to give the worker up.
    time.sleep(1)
    kill(stopped)
    shuffle.check()


def test_a_worker_is_killed_in_reads(client, gates):
    gate = gates()
    shuffle = Shuffle(client, table(), after=After(gate))
    until(lambda: gate.arrived(3), "some outputs were read")
    kill(next(iter(connected(client).values())))
    gate.open()
    shuffle.check()


def test_workers_are_killed_in_transfers_and_again_in_reads(client, gates):
    first, second = gates(), gates()
    shuffle = Shuffle(client, table(), gates={INPUTS - 1: first}, after=After(second))
    until(lambda: first.arrived() and transferred(client) >= INPUTS - 1, "all but one have ended")
    kill(next(iter(connected(client).values())))
    first.open()
    until(lambda: second.arrived(2), "some outputs were read")
    kill(list(connected(client).values())[-1])
    second.open()
    shuffle.check()


def test_a_worker_that_is_paused_and_comes_back(client, gates):
    gate = gates()
    shuffle = Shuffle(client, table(), gates={INPUTS - 1: gate})
    until(lambda: gate.arrived() and transferred(client) >= INPUTS - 1, "all but one have ended")
    stopped = arrivals_elsewhere(gate, connected(client).values())
    send(stopped, signal.SIGSTOP)
    gate.open()
    try:
        # The scheduler takes it for lost meanwhile.
        until(lambda: len(client.scheduler_info()["workers"]) == 2, "it counts as lost")
        time.sleep(1)
    finally:
        send(stopped, signal.SIGCONT)
    shuffle.check()


def test_a_worker_that_is_paused_for_a_moment(new_client, gates):
    client, gate = new_client(workers=3, threads_per_worker=2, worker_timeout=60), gates()
    shuffle = Shuffle(client, table(), gates={INPUTS - 1: gate})
    until(lambda: gate.arrived() and transferred(client) >= INPUTS - 1, "all but one have ended")
    stopped = arrivals_elsewhere(gate, connected(client).values())
    send(stopped, signal.SIGSTOP)
    gate.open()
    time.sleep(1)
    send(stopped, signal.SIGCONT)
    shuffle.check()
    assert len(client.scheduler_info()["workers"]) == 3


@pytest.mark.parametrize("phase", ["transfers", "barrier", "reads"])
def test_a_worker_retires(client, gates, phase):
    gate = gates()
    if phase == "reads":
        shuffle = Shuffle(client, table(), after=After(gate))
        until(lambda: gate.arrived(2), "some outputs were read")
    else:
        shuffle = Shuffle(client, table(), gates={INPUTS - 1: gate})
        until(lambda: gate.arrived() and transferred(client) >= INPUTS - 1, "all but one ended")
    # Before reads not the one whose task waits: it would wait for that.
    pid = None if phase == "reads" else arrivals_elsewhere(gate, connected(client).values())
    workers = client.scheduler_info()["workers"].items()
    pids = processes(client)
    address = next(a for a, worker in workers if pid in (None, pids[str(worker["name"])]))
    if phase == "barrier":
        # The barrier asks it what it has, and waits.
        send(pid, signal.SIGSTOP)
        gate.open()
        time.sleep(0.5)
    retiring = threading.Thread(target=client.retire_workers, args=([address],))
    retiring.start()
    time.sleep(0.5)
    if phase == "barrier":
        send(pid, signal.SIGCONT)
    gate.open()
    shuffle.check()
    retiring.join(SOON)
    assert not retiring.is_alive()


def test_three_times_the_memory(new_client):
    # Imports take a part of it, and a task several times what its input has.
    limit = 400 << 20
    client = new_client(workers=2, threads_per_worker=1, memory_limit=limit)
    rows = 80_000  # of 16 columns of eight bytes
    inputs = 3 * 2 * limit // (rows * 16 * 8)
    made = dd.from_map(numbers_of, range(inputs), rows=rows, meta=numbers_of(0, rows=1))
    shuffled = made.shuffle("key", npartitions=inputs)
    found = shuffled.map_partitions(checked, meta=pd.DataFrame({"rows": [0], "sum": [0.0]}))
    found = found.compute()
    assert found.rows.sum() == inputs * rows
    assert found["sum"].sum() == pytest.approx(
        sum(float(number) * rows * 15 for number in range(inputs))
    )
    spilled = sum(client.run(spilled_here).values())
    assert spilled > 3 * limit
    check_nothing_is_left(client)


def numbers_of(number, rows):
    frame = pd.DataFrame(np.full((rows, 15), float(number)), columns=[f"c{i}" for i in range(15)])
    frame["key"] = np.arange(rows) + number
    return frame


def checked(frame):
    return pd.DataFrame({"rows": [len(frame)], "sum": [frame.drop(columns="key").to_numpy().sum()]})


def spilled_here(dask_worker):
    return dask_worker._native.shuffle_stats()["spilled"]


# random rounds


def shuffled(chance, seed):
    frame = table(seed, chance.choice([0, 1, 50, 3000]))
    inputs, outputs = chance.randrange(1, 15), chance.randrange(1, 40)
    lazy = dd.from_map(part_of(frame, inputs, {}), range(inputs), meta=frame.iloc[:0])
    found = lazy.shuffle("key", npartitions=outputs)
    numbers = partitioning_index(frame[["key"]].astype("f8"), outputs)
    chosen = sorted(chance.sample(range(outputs), chance.randrange(1, outputs + 1)))
    expected = pd.concat([frame[numbers == number] for number in chosen])
    return found.partitions[chosen], lambda found: assert_frame_equal(found, expected)


def merged(chance, seed):
    left, right = table(seed, 800), table(seed + 1000, chance.choice([0, 300]))[["key", "value"]]
    sides = [
        dd.from_map(part_of(side, inputs, {}), range(inputs), meta=side.iloc[:0])
        for side, inputs in ((left, chance.randrange(2, 9)), (right, chance.randrange(2, 9)))
    ]
    how = chance.choice(["inner", "left", "outer"])
    found = sides[0].merge(sides[1], on="key", how=how)
    expected = left.merge(right, on="key", how=how)

    def check(found):
        columns = ["key", "value_x", "value_y", "text"]
        frames = [one.sort_values(columns).reset_index(drop=True) for one in (found, expected)]
        assert_frame_equal(*frames)

    return found, check


def indexed(chance, seed):
    frame = table(seed, 2000)
    inputs = chance.randrange(2, 12)
    lazy = dd.from_map(part_of(frame, inputs, {}), range(inputs), meta=frame.iloc[:0])
    expected = frame.set_index("key")

    def check(found):
        assert found.index.is_monotonic_increasing
        frames = [
            one.reset_index().sort_values(["key", "value"]).reset_index(drop=True)
            for one in (found, expected)
        ]
        assert_frame_equal(*frames)

    return lazy.set_index("key"), check


def rechunked(chance, seed):
    shape = (chance.randrange(1, 60), chance.randrange(1, 60))
    whole = np.random.default_rng(seed).normal(size=shape)
    before, after = (tuple(chance.randrange(1, size + 1) for size in shape) for _ in range(2))
    lazy = da.from_array(whole, chunks=before).rechunk(after)
    return lazy, lambda found: assert_array_equal(found, whole)


@pytest.mark.timeout(120 + 15 * ROUNDS, method="signal")
@pytest.mark.parametrize("first", range(SEED, SEED + ROUNDS, LEG))
def test_random_rounds(new_client, first):
    client = new_client(workers=3, threads_per_worker=2)
    for seed in range(first, min(first + LEG, SEED + ROUNDS)):
        print("seed", seed)
        chance = random.Random(seed)
        made = [
            chance.choice([shuffled, merged, indexed, rechunked])(chance, seed + 100 * number)
            for number in range(chance.randrange(1, 4))
        ]
        # Each on its own: Dask gives mixed ones back in another order.
        futures = [client.compute(lazy) for lazy, _ in made]
        if chance.random() < 0.7:
            time.sleep(chance.random() * 0.5)
            name, pid = chance.choice(sorted(connected(client).items()))
            kill(pid)
            until(lambda name=name, pid=pid: processes(client)[name] != pid, "it is replaced")
        for future, (_, check) in zip(futures, made, strict=True):
            check(future.result(timeout=2 * SOON))
        del futures, future
        check_nothing_is_left(client)
