"""`treadle.progress` on a terminal that can be drawn on."""

from __future__ import annotations

import io
import re

import pytest

import treadle
from client_support import AGAINST, inc
from treadle.client._progress import Counts, Moved, Row, _drawing

pytest.importorskip("rich")
pytestmark = pytest.mark.skipif(AGAINST == "distributed", reason="it is Treadle's own")

# What rich takes for markup, a tag that it cannot close, an emoji, and an escape.
NAMES = ["[bold]x[/bold]", "[/red]", "[/]", ":smile:", "a[red", "x\\", "[link=y]z"]


class Terminal(io.StringIO):
    """Keeps what is drawn on it."""

    def isatty(self) -> bool:
        return True

    @property
    def text(self) -> str:
        """All of it, without colours and movements."""
        return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self.getvalue())


@pytest.fixture
def terminal(monkeypatch: pytest.MonkeyPatch) -> Terminal:
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "200")
    return Terminal()


@pytest.mark.parametrize("name", NAMES)
def test_names_are_shown_as_they_are(terminal: Terminal, name: str) -> None:
    with _drawing(terminal) as draw:
        draw([Row(name, 1, 3, 0), Row(f"{name}2", 2, 3, 2)], [Moved(f"{name}3", 1, 2)], 1.0)
    rows = {line.split()[0]: line for line in terminal.text.splitlines() if line.split()}
    assert rows[name].split()[2] == "1/3"
    assert rows[f"{name}2"].split()[1:3] == ["2", "failed"]
    assert "1 B of 2 B" in rows[f"{name}3"]


def test_keys_are_shown_as_they_are(client: treadle.Client, terminal: Terminal) -> None:
    futures = [client.submit(inc, 1, key=name) for name in NAMES]
    treadle.progress(futures, notebook=False, file=terminal)
    for name in NAMES:
        assert f"{name} " in terminal.text


def test_a_value_that_is_lost_is_waited_for_again(client: treadle.Client) -> None:
    futures = client.map(inc, range(3))
    treadle.wait(futures)
    states = [future._state for future in futures]
    counts = Counts(client, states)
    assert counts.look().waiting == 0
    assert counts.finished
    # What its client is told when the worker that had the value is gone.
    states[1].lose()
    assert not counts.finished
    look = counts.look()
    assert look.waiting == 1
    assert [(row.done, row.total) for row in look.rows] == [(2, 3)]
