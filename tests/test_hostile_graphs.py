"""Graphs and keys that are made to break what walks them: the call fails, and nothing else."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest

# Each in a process of its own: what is tested here is that it survives.
PROGRAMS = {
    "keys that contain themselves": """
        keys = []
        keys.append(keys)
        fails(RecursionError, lambda: treadle.get({"x": 1}, keys))
    """,
    "very deep keys": """
        keys = ["x"]
        for _ in range(1_000_000):
            keys = [keys]
        fails(RecursionError, lambda: treadle.get({"x": 1}, keys))
        while isinstance(keys, list):
            keys = keys.pop()
    """,
    "a list in a task that contains itself": """
        items = []
        items.append(items)
        fails(RecursionError, lambda: treadle.get({"x": (len, items)}, "x"))
    """,
    "a very deep list in a task": """
        items = ["y"]
        for _ in range(1_000_000):
            items = [items]
        fails(RecursionError, lambda: treadle.get({"x": (len, items), "y": 1}, "x"))
        while isinstance(items, list):
            items = items.pop()
    """,
    "a key whose hash clears the graph": """
        class Key:
            armed = False
            def __hash__(self):
                if Key.armed:
                    graph.clear()
                return 1
        for get in (treadle.get, partial(treadle.get, num_workers=1)):
            graph = {Key(): Task("a", int) for _ in range(1)}
            graph.update({f"x-{i}": bytes(1000) for i in range(100)})
            Key.armed = True
            outcome(lambda: get(graph, "x-99"))
            Key.armed = False
    """,
    "a key whose comparison clears the graph": """
        class Key:
            def __init__(self, graph):
                self.graph = graph
            def __hash__(self):
                return hash("other")
            def __eq__(self, other):
                if self.graph:
                    self.graph.clear()
                return self is other
        graph = {}
        key = Key({})
        graph[key] = Task(key, int)
        graph["other"] = Task("other", bytes, TaskRef(Key({})))
        key.graph = graph
        outcome(lambda: treadle.get(graph, ["other", key]))
    """,
}

PREAMBLE = """
import treadle
from functools import partial
from dask._task_spec import Task, TaskRef

def fails(kind, call):
    try:
        call()
    except kind:
        return
    raise AssertionError("it did not fail")

def outcome(call):
    try:
        call()
    except Exception as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize("name", PROGRAMS)
def test_only_the_call_fails(name: str) -> None:
    ending = '\nassert treadle.get({"x": (sum, [1, 2])}, "x") == 3\nprint("survived")\n'
    program = PREAMBLE + textwrap.dedent(PROGRAMS[name]) + ending
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == 0, ended.stderr[-2000:]
    assert ended.stdout.endswith("survived\n")
