"""``treadle bench compare``: a script on both engines, and whether they gave the same."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from click.testing import CliRunner

from treadle.__main__ import main
from treadle.cli._same_results import difference


def compare(script: Path, text: str, *options: str) -> tuple[int, str]:
    script.write_text(text)
    done = CliRunner().invoke(main, ["bench", "compare", str(script), "--rounds", "2", *options])
    return done.exit_code, done.output


def test_equal_results_and_the_times_of_both(tmp_path: Path) -> None:
    figures = tmp_path / "figures.json"
    text = """
import sys, threading
import dask, dask.array as da
from dask import delayed
print(sys.argv[1:], __name__)
print(da.arange(1000, chunks=10).sum().compute())
dask.compute(delayed(sum)([1, 2]), da.ones(10, chunks=5))
da.ones(10, chunks=5).persist().compute()
"""
    options = ("--json", str(figures), "--", "--one", "two")
    status, output = compare(tmp_path / "script.py", text, *options)
    assert status == 0, output
    assert "equal results (3 of compute)" in output
    assert "as fast (Dask " in output
    told = json.loads(figures.read_text())
    assert told["difference"] is None
    for engine in ("dask", "treadle"):
        assert (
            told[engine]["seconds"] >= told[engine]["computing"] >= told[engine]["scheduling"] > 0
        )
        assert told[engine]["tasks"] > 0


def test_each_engine_runs_its_own_graphs_and_clients(tmp_path: Path) -> None:
    seen = tmp_path / "seen"
    text = f"""
import threading
from dask import delayed
from distributed import Client
name = delayed(lambda: threading.current_thread().name[:7])().compute()
with Client(processes=False, n_workers=1, dashboard_address=None) as client:
    client.submit(int).result()
    with open({str(seen)!r}, "a") as file:
        print(type(client).__module__.partition(".")[0], name, file=file)
"""
    status, output = compare(tmp_path / "script.py", text)
    assert "call 1 of compute: 'ThreadP', and 'treadle'" in output
    assert status == 1
    lines = seen.read_text().splitlines()
    assert sorted(set(lines)) == ["distributed ThreadP", "treadle treadle"]
    # Two rounds and one with a profiler, in turns.
    assert [line.split()[0] for line in lines[:4]] == [
        "distributed",
        "treadle",
        "treadle",
        "distributed",
    ]
    assert len(lines) == 6


def test_what_is_random_is_said_to_be(tmp_path: Path) -> None:
    text = "import random\nfrom dask import delayed\ndelayed(random.random)().compute()"
    status, output = compare(tmp_path / "script.py", text)
    assert status == 1
    assert "they differ between runs on dask, too" in output


def test_other_output_is_a_difference(tmp_path: Path) -> None:
    text = "import os\nprint('here'); print('process', os.getpid())"
    status, output = compare(tmp_path / "script.py", text)
    assert status == 1
    assert "what is printed: 'process" in output


def test_a_script_that_fails_shows_its_traceback(tmp_path: Path) -> None:
    status, output = compare(tmp_path / "script.py", "import dask\n1 / 0")
    assert status == 1
    assert "failed on dask (status 1)" in output
    assert "ZeroDivisionError" in output
    text = "import time\ntime.sleep(60)"
    status, output = compare(tmp_path / "script.py", text, "--timeout", "1")
    assert status == 1
    assert "took more than 1 s" in output


FRAME = pd.DataFrame({"a": [1.0, float("nan")], "b": ["x", None]})
VALUES: list[tuple[Any, Any]] = [
    (1, 2),
    (1, 1.0),
    (0.1 + 0.2, 0.31),
    ([1, 2], [1, 2, 3]),
    ({"a": 1}, {"b": 1}),
    ((1, [np.arange(3)]), (1, [np.arange(4)])),
    (np.arange(3), np.arange(3.0)),
    (np.array([1.0, float("nan")]), np.array([1.0, 2.0])),
    (np.array(["a"], object), np.array(["b"], object)),
    (np.float64(1), np.float64(2)),
    (FRAME, FRAME.assign(a=[1.0, 2.0])),
    (FRAME.b, FRAME.b.rename("c")),
    (pd.DataFrame({"a": [1, 2]}), pd.DataFrame({"a": [2, 2]})),
    (pd.Series([1.0, 2.0], name="s"), pd.Series([2.0, 1.5], name="s")),
    (FRAME.index, FRAME.index + 1),
    (pd.Timestamp(0), pd.Timestamp(1)),
    (np.datetime64("NaT"), np.datetime64("2020-01-01")),
]


def recorded(value: Any) -> list[tuple[str, Any]]:
    return [("value", pickle.dumps(value))]


@pytest.mark.parametrize(("one", "other"), VALUES)
def test_values_that_are_equal_and_that_are_not(one: Any, other: Any) -> None:
    for value in (one, other):
        # Not the same bytes, so they are compared.
        assert difference(recorded(value), [("value", pickle.dumps(value, protocol=2))]) is None
    assert difference(recorded(one), recorded(other)) is not None


def test_the_order_of_rows_does_not_count() -> None:
    frame = pd.DataFrame({"name": list("abc"), "value": [0.1, 0.2, 0.3]}).set_index("name")
    assert difference(recorded(frame), recorded(frame[::-1] * (1 + 1e-12))) is None
    # Which value belongs to which row does.
    other = frame.assign(value=frame.value.to_numpy()[::-1])
    assert difference(recorded(frame), recorded(other)) is not None
    strange = pd.DataFrame({"a": [{1}, {2}]})
    assert difference(recorded(strange), recorded(strange[::-1])) is not None


def test_last_digits_and_numbers_of_calls() -> None:
    assert difference(recorded(0.1 + 0.2), recorded(0.3)) is None
    big = np.array([1e9, 1e-9])
    assert difference(recorded(big), recorded(big + np.array([0, 1e-8]))) is None
    assert difference(recorded(1), []) == "1 calls of compute, and 0"
    assert difference([("token", "a")], [("token", "b")]) is not None
