"""What the tasks of shuffles ask the scheduler, without a cluster."""

import threading

import pandas as pd
import pytest
from distributed.exceptions import Reschedule
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

    def call(self, _to, _operation, _argument, done):
        self.asked += 1
        threading.Timer(0.1, done, [(self.number, 3, SPEC), None]).start()

    def shuffle_commit(self, number, maps, _receipts):
        if number != self.number:
            raise Reschedule
        return 10 * number + maps


def test_threads_that_need_the_same_shuffle_ask_once():
    scheduler = Scheduler()
    shuffles = Shuffles(scheduler)
    results = []

    def barriers():
        threads = [
            threading.Thread(target=lambda: results.append(shuffles.barrier("s", [])))
            for _ in range(8)
        ]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()

    barriers()
    assert (results, scheduler.asked) == ([13] * 8, 1)
    # Another shuffle has the name, as when a graph is computed again.
    scheduler.number = 2
    results.clear()
    barriers()
    assert (results, scheduler.asked) == ([23] * 8, 2)


def test_a_task_is_given_back_if_the_shuffle_is_the_same():
    scheduler = Scheduler()
    shuffles = Shuffles(scheduler)
    assert shuffles.barrier("s", []) == 13
    scheduler.shuffle_commit = lambda *_: (_ for _ in ()).throw(Reschedule())
    with pytest.raises(Reschedule):
        shuffles.barrier("s", [])
    assert scheduler.asked == 2
