"""The journal of a shuffle service: its master's records, written as the scheduler's are."""

from __future__ import annotations

import json
import threading
from typing import Any

from treadle.shuffle._journal import Journal, path_of

__all__ = ["Keeper"]

# Seconds between two looks at what has ended.
_PAUSE = 0.5


class Keeper:
    """Takes the records of shuffles that have ended from a master, and has them written.

    Parameters
    ----------
    master
        A ``_core.ShuffleMaster`` of this process.
    path
        The file of the journal.
    """

    def __init__(self, master: Any, path: str) -> None:
        self._master = master
        self._journal = Journal(path, master.cluster)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="treadle-keeper", daemon=True)
        self._thread.start()

    @classmethod
    def of(cls, master: Any, given: str | None, default: str | None = None) -> Keeper | None:
        """Return one for the journal that is given, configured, or the default; None: there is none."""
        path = path_of(given, default)
        return None if path is None else cls(master, path)

    def close(self) -> None:
        """Write what has ended by now. Called before the master is closed."""
        self._over.set()
        self._thread.join()
        self._journal.close()

    def _run(self) -> None:
        is_over = False
        while not is_over:
            is_over = self._over.wait(_PAUSE)
            for told in json.loads(self._master.take_records()):
                self._journal.write(told)
