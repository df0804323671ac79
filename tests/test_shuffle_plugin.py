"""What the tasks of shuffles ask the scheduler, without a cluster."""

import threading

import pandas as pd
import pytest
from distributed.exceptions import Reschedule
from distributed.shuffle._core import handle_transfer_errors
from distributed.shuffle._shuffle import DataFrameShuffleSpec

from treadle.shuffle._plugin import Shuffles
from treadle.shuffle._spec import describe

META = pd.DataFrame({"a": [1.5], "where": [0]})
SPEC = describe(
    DataFrameShuffleSpec(
        id="s",
        disk=True,
        npartitions=8,
        column="where",
        meta=META,
        parts_out=8,
        drop_column=True,
    )
)[2]


class Scheduler:
    """Stands for the worker's connection: it answers a moment later."""

    address = "here"

    def __init__(self):
        self.number = 1
        self.asked = 0
        self.lost = []

    def call(self, _to, operation, argument, done):
        if operation == "shuffle_lost":
            self.lost.append(argument)
            done(True, None)
            return
        self.asked += 1
        threading.Timer(0.1, done, [(self.number, 3, SPEC, 8, None, [(0, 8)], False), None]).start()

    def shuffle_transfer(self, number, map_index, _rows):
        if number != self.number:
            raise Reschedule
        return b"%d" % map_index

    def shuffle_commit(self, number, maps, receipts):
        assert number == self.number
        return len(receipts) * 10 + maps


def inputs(shuffles, receipts):
    """Eight threads transfer an input each."""
    frame = pd.DataFrame({"a": [1.5], "where": [3]})

    def transfer(number):
        receipts.append(shuffles.add_partition(frame, number, "s"))

    threads = [threading.Thread(target=transfer, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_threads_that_need_the_same_shuffle_ask_once():
    scheduler = Scheduler()
    shuffles = Shuffles(scheduler)
    receipts = []
    inputs(shuffles, receipts)
    assert (sorted(receipts), scheduler.asked) == ([(1, b"%d" % n) for n in range(8)], 1)
    # Another shuffle has the name, as when a graph is computed again.
    scheduler.number = 2
    receipts.clear()
    inputs(shuffles, receipts)
    assert (sorted(receipts), scheduler.asked) == ([(2, b"%d" % n) for n in range(8)], 2)


def test_a_barrier_is_that_of_its_receipts():
    scheduler = Scheduler()
    shuffles = Shuffles(scheduler)
    assert shuffles.barrier("s", [(1, b"0")]) == (1, 13)
    # Transfers of another shuffle of the name ran elsewhere: this worker has not heard of it.
    scheduler.number = 2
    assert shuffles.barrier("s", [(2, b"0"), (2, b"1")]) == (2, 23)
    # A receipt of the one before is kept: the scheduler learns that its input has to run again.
    with pytest.raises(Reschedule, match=r"inputs \[1\] of shuffle s"):
        shuffles.barrier("s", [(2, b"0"), (1, b"1"), (2, b"2")])
    assert scheduler.lost == [{"name": "s", "number": 2, "maps": [(1, 2)], "outputs": False}]


def test_a_barrier_whose_shuffle_has_ended_begins_it_anew():
    scheduler = Scheduler()
    shuffles = Shuffles(scheduler)
    shuffles.barrier("s", [(1, b"0")])

    def commit(number, _maps, _receipts):
        assert number == 1
        raise Reschedule("it has ended")

    scheduler.shuffle_commit = commit
    # It is given back as long as the shuffle is the same.
    with pytest.raises(Reschedule, match="it has ended"):
        shuffles.barrier("s", [(1, b"0")])
    assert not scheduler.lost
    scheduler.number = 2
    with pytest.raises(Reschedule, match=r"inputs \[0\] of shuffle s"):
        shuffles.barrier("s", [(1, b"0")])
    assert scheduler.lost == [{"name": "s", "number": 2, "maps": [(0, 1)], "outputs": False}]


def test_a_task_is_given_back_if_the_shuffle_is_the_same():
    scheduler = Scheduler()
    shuffles = Shuffles(scheduler)
    frame = pd.DataFrame({"a": [1.5], "where": [3]})
    assert shuffles.add_partition(frame, 0, "s") == (1, b"0")
    scheduler.shuffle_transfer = lambda *_: (_ for _ in ()).throw(Reschedule())
    # As Dask calls it: its function knows one error for this.
    with pytest.raises(Reschedule), handle_transfer_errors("s"):
        shuffles.add_partition(frame, 0, "s")
    assert scheduler.asked == 2
