"""Disks of processes that break while they run."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from process_support import Process
from waiting import until

HOOK = Path(__file__).parent / "broken_disks"


class Disks:
    """Breaks disks of processes that are started after it was made."""

    def __init__(self, directory: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._wishes = directory
        paths = [str(HOOK), *filter(None, [os.environ.get("PYTHONPATH")])]
        monkeypatch.setenv("PYTHONPATH", os.pathsep.join(paths))
        monkeypatch.setenv("TREADLE_BROKEN_DISKS", str(directory))

    def breaks(self, process: Process, *kinds: str) -> None:
        """From now on each ``read`` or ``write`` of a file at a place fails with EIO there."""
        wish = self._wishes / str(process.pid)
        part = wish.with_suffix(".part")
        part.write_text(" ".join(kinds))
        part.rename(wish)
        until(lambda: not wish.exists(), lambda: process.output)
