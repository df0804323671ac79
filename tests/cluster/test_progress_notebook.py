"""`treadle.progress` in a notebook."""

from __future__ import annotations

import re
import textwrap
from types import SimpleNamespace

import pytest

import treadle
from client_support import AGAINST, Gate, inc, pass_gate
from treadle.client import _progress
from waiting import until

pytestmark = pytest.mark.skipif(AGAINST == "distributed", reason="it is Treadle's own")


def test_the_bar_says_how_far_futures_are(client: treadle.Client, gate: Gate) -> None:
    done = client.map(inc, range(7))
    treadle.wait(done)
    held = client.submit(pass_gate, gate)
    failing = client.submit(len, 5)
    treadle.wait(failing)
    bar = treadle.progress([*done, held, failing], notebook=True)
    drawn = bar._repr_html_()
    assert re.search(r"inc.*<progress max='7' value='7'>.*7 / 7", drawn)
    assert re.search(r"pass_gate.*<progress max='1' value='0'>.*0 / 1", drawn)
    assert re.search(r"len.*1 failed", drawn)
    gate.open()
    treadle.wait(held)
    assert re.search(r"pass_gate.*<progress max='1' value='1'>.*1 / 1", bar._repr_html_())


def test_a_value_that_nobody_wants_has_not_failed(client: treadle.Client, gate: Gate) -> None:
    held = client.submit(pass_gate, gate)
    future = client.submit(inc, 1)
    bar = treadle.progress([held, future], notebook=True)
    assert future.result() == 2
    state = future._state
    del future
    until(lambda: state.status == "cancelled")
    assert "failed" not in bar._repr_html_()
    gate.open()
    treadle.wait(held)


def test_a_scheduler_that_is_busy_is_asked_again(
    client: treadle.Client, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = client.submit(pass_gate, gate, 1)
    # The bar does not keep it: the scheduler would forget what nobody wants.
    last = client.submit(inc, held, key="last")
    bar = treadle.progress(last, notebook=True)
    # A busy machine may answer the first question too late, and nothing is known before.
    until(lambda: "pass_gate" in bar._repr_html_())
    monkeypatch.setattr(_progress, "_PAUSE", 0.0)

    def late(*_: object) -> None:
        raise TimeoutError

    monkeypatch.setattr(_progress, "ask_now", late)
    assert "0 / 1" in re.findall("pass_gate.*", bar._repr_html_())[0].partition("</tr>")[0]
    monkeypatch.setattr(_progress, "ask_now", lambda *_: {"pass_gate": {"memory": 1}})
    assert "1 / 1" in re.findall("pass_gate.*", bar._repr_html_())[0].partition("</tr>")[0]
    gate.open()
    assert last.result() == 2


def test_a_scheduler_that_takes_long_to_look_is_asked_rarely(
    client: treadle.Client, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    future = client.submit(pass_gate, gate)
    now, asked = [100.0], []

    def slowly(*_: object) -> dict[str, dict[str, int]]:
        asked.append(now[0])
        now[0] += 0.7
        return {"pass_gate": {"memory": 0, "assigned": 1}}

    monkeypatch.setattr(_progress, "ask_now", slowly)
    # Other threads go on with the real time.
    monkeypatch.setattr(_progress, "time", SimpleNamespace(monotonic=lambda: now[0]))
    counts = _progress.Counts(client, [future._state])
    for _ in range(200):
        assert [row.total for row in counts.look().rows] == [1]
        now[0] += 0.1
    # In twenty seconds and as long as it took.
    assert len(asked) == 3
    gate.open()


def test_many_functions_have_a_row_together(client: treadle.Client) -> None:
    futures = [client.submit(inc, i, key=f"name_{i:02}") for i in range(60)]
    treadle.wait(futures)
    drawn = treadle.progress(futures, notebook=True)._repr_html_()
    assert drawn.count("<tr>") == 51
    assert re.search(r"name_49.*1 / 1.*10 more.*<progress max='10' value='10'>.*10 / 10", drawn)


def test_names_are_text(client: treadle.Client) -> None:
    future = client.submit(inc, 1, key="<b>x</b>")
    treadle.wait(future)
    drawn = treadle.progress(future, notebook=True)._repr_html_()
    assert "b>x" not in drawn
    assert "b&gt;x" in drawn


def test_the_bar_moves_in_a_notebook() -> None:
    """In a real kernel, where one is installed (`pip install nbclient ipykernel`)."""
    nbclient = pytest.importorskip("nbclient")
    nbformat = pytest.importorskip("nbformat")
    pytest.importorskip("ipykernel")
    cells = [
        "import time, treadle; client = treadle.Client(workers=1)",
        "futures = client.map(time.sleep, [0.1, 0.2, 0.3]); treadle.progress(futures)",
        # Its thread draws for the last time when the futures are done.
        """
        import threading
        treadle.wait(futures)
        for thread in threading.enumerate():
            if thread.name == "treadle-progress":
                thread.join(30)
        client
        """,
        "client.close()",
    ]
    sources = [nbformat.v4.new_code_cell(textwrap.dedent(cell)) for cell in cells]
    notebook = nbformat.v4.new_notebook(cells=sources)
    nbclient.NotebookClient(notebook, timeout=60, kernel_name="python3").execute()
    (bar,) = notebook.cells[1].outputs
    assert "<progress max='3' value='3'>" in bar["data"]["text/html"]
    (shown,) = notebook.cells[2].outputs
    assert "treadle://" in shown["data"]["text/plain"]
    assert "Client" in shown["data"]["text/html"]
