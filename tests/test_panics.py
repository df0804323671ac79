"""A panic of the engine itself ends the call that it met, with an error that says so."""

from __future__ import annotations

import subprocess
import sys

import pytest

# A node whose arguments change while they are read makes a thread panic.
PROGRAM = """
import treadle
from dask._task_spec import Task, TaskRef

if __name__ == "__main__":

    def grow():
        for number in range(100):
            node.kwargs[f"c{number}"] = 1
        return 1

    node = Task("x", dict, a=Task("a", grow), b=TaskRef("value"))
    graph = {"x": node, "value": 1, **{f"y{i}": (abs, i) for i in range(10)}}
    try:
        treadle.get(graph, ["x", *(f"y{i}" for i in range(10))], num_workers=THREADS)
    except RuntimeError as error:
        print(error)
    print(treadle.get({"z": (sum, [1, 2])}, "z", num_workers=2))
"""


SYNC = """
import treadle
from dask._task_spec import Task, TaskRef

if __name__ == "__main__":

    def grow():
        node.kwargs["c"] = TaskRef("missing")
        return 1

    node = Task("x", dict, a=TaskRef("y"))
    try:
        treadle.sync.get({"x": node, "y": Task("y", grow)}, "x")
    except RuntimeError as error:
        print(error)
    print(treadle.sync.get({"z": (sum, [1, 2])}, "z"))
"""


def lines_of(program: str) -> list[str]:
    """What a program prints, which ends well."""
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    return ended.stdout.splitlines()


def test_a_panic_in_the_calling_thread_is_raised_there():
    first, last = lines_of(SYNC)
    assert "panicked: a node has as many references as when it was loaded" in first
    assert last == "3"


@pytest.mark.parametrize("threads", [2, 8])
def test_a_panic_is_raised_where_the_run_is_waited_for(threads):
    first, last = lines_of(PROGRAM.replace("THREADS", str(threads)))
    assert "a thread of Treadle's engine panicked: dictionary changed size" in first
    assert last == "3"
