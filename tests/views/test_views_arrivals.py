"""Outputs as they arrive, without engines."""

from __future__ import annotations

import re
from collections import defaultdict
from itertools import product

import pytest

from treadle.views import _arrivals


def arrived(*texts: str) -> str:
    metadata: dict[str, str] = defaultdict(str)
    for text in texts:
        _arrivals._apply(metadata, "stream", {"name": "stdout", "text": text})
    return metadata["stdout"]


def test_a_carriage_return_takes_back_what_ipyparallel_takes_back() -> None:
    """Of all short texts in two pieces: what a slow regular expression says."""
    pattern = re.compile(r".*\r(?=[^\n])")
    pieces = ["".join(letters) for n in range(4) for letters in product("a\r\n", repeat=n)]
    for first, second in product(pieces, pieces):
        text = pattern.sub("", first) + second
        expected = pattern.sub("", text) if "\r" in second else text
        # The first piece counts as text that was kept.
        assert arrived(first, second) == expected, (first, second)


def test_lines_that_have_ended_are_not_looked_at_again(monkeypatch: pytest.MonkeyPatch) -> None:
    looked: list[str] = []
    taken_back = _arrivals._taken_back
    monkeypatch.setattr(
        _arrivals, "_taken_back", lambda text: looked.append(text) or taken_back(text)
    )
    # A long line: for a regular expression that tries each place of it, hours.
    assert arrived("x" * 1_000_000 + "\n 40%", "\r 50%", "\r 60%").endswith("x\n 60%")
    assert looked == [" 40%\r 50%", " 50%\r 60%"]
