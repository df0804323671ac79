"""The journal of shuffles: a small SQLite file with the records of those that have ended.

A thread of its own writes it, so that neither the scheduler nor the sidecar's event loop waits for a disk.
What goes wrong is said once, and nothing else fails because of it.
"""

from __future__ import annotations

import json
import logging
import os
import queue
import sqlite3
import threading
from collections.abc import Mapping
from contextlib import closing, suppress
from typing import Any

import dask

from treadle.shuffle._history import ShuffleRecord, Shuffles

__all__ = ["Journal", "default_path", "path_of", "read"]

logger = logging.getLogger("treadle.shuffle")

# Records that are kept; older ones go. One takes about 3 kB.
MOST = 10_000
# Records that wait to be written.
_MOST_WAITING = 4096
# Seconds to wait for another process that writes, and for the thread at the end.
_PATIENCE = 5.0
_VERSION = 1

_SCHEMA = """
CREATE TABLE IF NOT EXISTS shuffles (
    cluster TEXT NOT NULL,
    number INTEGER NOT NULL,
    name TEXT NOT NULL,
    kind TEXT NOT NULL,
    state TEXT NOT NULL,
    began REAL NOT NULL,
    ended REAL NOT NULL,
    rows INTEGER NOT NULL,
    bytes INTEGER NOT NULL,
    record TEXT NOT NULL,
    PRIMARY KEY (cluster, number)
);
CREATE INDEX IF NOT EXISTS by_end ON shuffles (ended);
"""


def default_path() -> str:
    """Return where ``treadle scheduler`` keeps its journal if nothing else is said."""
    state = os.environ.get("XDG_STATE_HOME") or os.path.expanduser("~/.local/state")
    return os.path.join(state, "treadle", "shuffles.sqlite")


def path_of(given: str | None, default: str | None = None) -> str | None:
    """Return where a journal is: as given, else as configured, else the default; None: nowhere.

    ``"none"``, given or in Dask's setting ``treadle.shuffle.journal``, stands for nowhere.
    """
    path = given or dask.config.get("treadle.shuffle.journal", None) or default
    if path is None or str(path).lower() == "none":
        return None
    return os.path.abspath(os.path.expanduser(str(path)))


class Journal:
    """Writes records of ended shuffles to a file, in a thread that the first one starts.

    Parameters
    ----------
    path
        The file. It is made, with its directory, for this user alone. Several processes may write it.
    cluster
        The id of the cluster whose shuffles these are.
    """

    def __init__(self, path: str, cluster: str) -> None:
        self._path = path
        self._cluster = cluster
        self._queue: queue.Queue[Mapping[str, Any] | None] = queue.Queue(_MOST_WAITING)
        self._thread: threading.Thread | None = None
        self._lock = threading.Lock()
        self._warned: set[str] = set()

    def write(self, told: Mapping[str, Any]) -> None:
        """Have a record written, soon. It may have been written before."""
        with self._lock:
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._run, name="treadle-shuffle-journal", daemon=True
                )
                self._thread.start()
        try:
            self._queue.put_nowait(told)
        except queue.Full:
            self._warn("its disk is too slow, and records are left out")

    def close(self) -> None:
        """Write what waits, for a few seconds at most."""
        thread = self._thread
        if thread is None:
            return
        with suppress(queue.Full):
            self._queue.put(None, timeout=_PATIENCE)
            thread.join(_PATIENCE)

    def _run(self) -> None:
        while True:
            waiting = [self._queue.get()]
            with suppress(queue.Empty):
                while waiting[-1] is not None and len(waiting) < _MOST_WAITING:
                    waiting.append(self._queue.get_nowait())
            records = [one for one in waiting if one is not None]
            try:
                if records:
                    self._add([ShuffleRecord.of(told) for told in records])
            except Exception as error:
                self._warn(str(error) or type(error).__name__)
            if waiting[-1] is None:
                return

    def _add(self, records: list[ShuffleRecord]) -> None:
        rows = [
            (
                *(self._cluster, one.number, one.name, one.kind, one.state),
                *(one.began, one.ended, one.rows, one.bytes),
                json.dumps({**one.to_dict(), "cluster": self._cluster}),
            )
            for one in records
        ]
        _make(self._path)
        with closing(sqlite3.connect(self._path, timeout=_PATIENCE)) as connection, connection:
            _check(connection, self._path)
            connection.executescript(_SCHEMA)
            connection.execute(f"PRAGMA user_version = {_VERSION}")
            connection.executemany(
                "INSERT OR REPLACE INTO shuffles VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)", rows
            )
            connection.execute(
                "DELETE FROM shuffles WHERE rowid IN "
                "(SELECT rowid FROM shuffles ORDER BY ended DESC LIMIT -1 OFFSET ?)",
                (MOST,),
            )

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned.add(why)
            logger.warning(
                "The journal of shuffles %s cannot be written: %s. Shuffles go on without it; name "
                "another file with --shuffle-journal or treadle.shuffle.journal, or none",
                self._path,
                why,
            )


def read(
    path: str, *, limit: int | None = None, state: str | None = None, name: str | None = None
) -> Shuffles:
    """Return the records of a journal, the latest one last.

    Parameters
    ----------
    limit
        At most so many, the latest; None: all.
    state
        Those that ended so: ``finished``, ``failed`` or ``cancelled``.
    name
        Those whose name, number or key begins so.

    Raises
    ------
    OSError
        There is no such file, or it cannot be read.
    ValueError
        It is no journal.
    """
    if not os.path.exists(path):
        raise FileNotFoundError(f"there is no journal of shuffles at {path}")
    where, values = ["1"], list[Any]()
    if state is not None:
        where.append("state = ?")
        values.append(state)
    if name is not None:
        where.append("(name LIKE ? OR number = ? OR json_extract(record, '$.key') LIKE ?)")
        values += [f"{name}%", name, f"{name}%"]
    query = f"SELECT record FROM shuffles WHERE {' AND '.join(where)} ORDER BY ended DESC LIMIT ?"
    try:
        with closing(sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=_PATIENCE)) as found:
            _check(found, path)
            if found.execute("SELECT count(*) FROM sqlite_master").fetchone() == (0,):
                # It is being made.
                return Shuffles()
            rows = found.execute(query, [*values, -1 if limit is None else limit]).fetchall()
    except sqlite3.OperationalError as error:
        raise OSError(f"{path}: {error}") from None
    except sqlite3.DatabaseError as error:
        raise ValueError(f"{path} is no journal of shuffles: {error}") from None
    return Shuffles(ShuffleRecord.of(json.loads(text)) for (text,) in reversed(rows))


def _make(path: str) -> None:
    """Make the file for this user alone: names of keys may be nobody else's business."""
    os.makedirs(os.path.dirname(path), mode=0o700, exist_ok=True)
    os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def _check(connection: sqlite3.Connection, path: str) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version not in (0, _VERSION):
        raise ValueError(
            f"{path} was written by another version of Treadle (format {version}, not {_VERSION}): "
            "name another file"
        )
