"""The database: one thread that writes, many writes a transaction, and readers beside it."""

from __future__ import annotations

import math
import os
import queue
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

import sqlalchemy as sa
from sqlalchemy.schema import CreateColumn

from treadle.coordinator import _tables

__all__ = ["Busy", "Database"]

_Value = TypeVar("_Value")
_Item = TypeVar("_Item")

# Writes that wait, and those of one transaction.
_MOST_WAITING = 2000
_MOST_TOGETHER = 200
# Seconds: after a transaction that ended so shortly ago, writes are gathered for so long.
_BUSY, _GATHERED = 0.01, 0.004
# Milliseconds for which SQLite waits for another process's lock: a decision has two seconds.
_LOCK_MS = 1000
_WRITES = "treadle_writes"


# A key of PostgreSQL's advisory locks: any number that nobody else uses in this database.
_WRITER = 0x7472_6561_646C_65


class Busy(RuntimeError):
    """More writes wait than can be done in time."""


@dataclass(frozen=True)
class _Write:
    """A write that waits: of what, and until when."""

    function: Callable[[sa.Connection, list[Any]], list[Any]]
    item: Any
    done: Future[Any]
    deadline: float


class Database:
    """An engine of SQLAlchemy with one writer.

    Writes that come while one transaction is being written go into the next one together, so that their number does
    not depend on how long the disk takes. A write is done when its transaction is on disk.
    """

    def __init__(self, url: str) -> None:
        self.is_sqlite = url.startswith("sqlite")
        if self.is_sqlite and (path := sa.make_url(url).database):
            # Names and errors of jobs are in it.
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        options: dict[str, Any] = {"pool_pre_ping": not self.is_sqlite}
        if self.is_sqlite:
            options["connect_args"] = {"check_same_thread": False, "timeout": _LOCK_MS / 1000}
            # One connection is there for each that reads, and they wait for none.
            options["pool_size"], options["max_overflow"] = 8, 24
            options["poolclass"] = sa.QueuePool
        self._engine = sa.create_engine(url, **options)
        if self.is_sqlite:
            sa.event.listen(self._engine, "connect", _prepare_sqlite)
            sa.event.listen(self._engine, "begin", _begin_sqlite)
        elif self._engine.dialect.name == "postgresql":
            sa.event.listen(self._engine, "begin", _begin_postgresql)
        # It shares the connections of the other.
        self._writing = self._engine.execution_options(**{_WRITES: True})
        self._waiting: queue.Queue[_Write | None]
        self._waiting = queue.Queue(_MOST_WAITING)
        self._make_tables()
        self._thread = threading.Thread(
            target=self._write_all, name="coordinator-writer", daemon=True
        )
        self._thread.start()

    def _make_tables(self) -> None:
        with self._writing.begin() as connection:
            _tables.metadata.create_all(connection)
            _add_what_is_new(connection)
            found = connection.execute(
                sa.select(_tables.settings.c.value).where(_tables.settings.c.name == "schema")
            ).scalar()
            if found is None:
                connection.execute(
                    _tables.settings.insert().values(name="schema", value=_tables.SCHEMA)
                )
            elif found != _tables.SCHEMA:
                raise ValueError(
                    f"the database has schema {found}, and this release needs {_tables.SCHEMA}: "
                    "use another database, or the release that wrote it"
                )

    def write(
        self, function: Callable[[sa.Connection], _Value], patience: float = 2.0
    ) -> Future[_Value]:
        """Have a function write; the future is done when that is on disk.

        A write that has waited for ``patience`` seconds is not begun: nobody waits for it any more.

        Raises
        ------
        Busy
            Too many writes wait.
        """
        return self.write_together(_call_each, function, patience)

    def write_together(
        self,
        function: Callable[[sa.Connection, list[_Item]], list[_Value]],
        item: _Item,
        patience: float = 2.0,
    ) -> Future[_Value]:
        """As :meth:`write`, with a function that writes all items at once that wait for it; it returns a value for each.

        If it fails, it is called again for each item alone.
        """
        done: Future[_Value] = Future()
        try:
            self._waiting.put_nowait(_Write(function, item, done, time.monotonic() + patience))
        except queue.Full:
            raise Busy(f"{_MOST_WAITING} writes wait for the database") from None
        return done

    def write_now(
        self, function: Callable[[sa.Connection], _Value], patience: float = 10.0
    ) -> _Value:
        """Write, and wait for it."""
        return self.write(function, patience).result(patience + 5)

    def read(self, function: Callable[[sa.Connection], _Value]) -> _Value:
        """Read in a transaction."""
        with self._engine.connect() as connection:
            return function(connection)

    def close(self) -> None:
        """Write what waits, and end."""
        self._waiting.put(None, timeout=10)
        self._thread.join(20)
        self._engine.dispose()

    def _write_all(self) -> None:
        is_open = True
        written = -math.inf
        while is_open:
            first = self._waiting.get()
            if first is None:
                return
            if time.monotonic() < written + _BUSY:
                # A transaction costs as much as several decisions. One that comes alone waits for no others.
                time.sleep(_GATHERED)
            batch = [first]
            while len(batch) < _MOST_TOGETHER:
                try:
                    one = self._waiting.get_nowait()
                except queue.Empty:
                    break
                if one is None:
                    is_open = False
                    break
                batch.append(one)
            self._write(batch)
            written = time.monotonic()

    def _write(self, batch: list[_Write]) -> None:
        now = time.monotonic()
        current = []
        for one in batch:
            # Nobody waits for one that was cancelled; one that runs cannot be cancelled any more.
            if not one.done.running() and not one.done.set_running_or_notify_cancel():
                continue
            if one.deadline < now:
                one.done.set_exception(Busy("the database was busy for too long"))
            else:
                current.append(one)
        if not current:
            return
        # Writes of one batch wait for nobody else's answer: their order is free.
        together: dict[Any, list[_Write]] = {}
        for one in current:
            together.setdefault(one.function, []).append(one)
        values: list[tuple[_Write, Any]] = []
        try:
            with self._writing.begin() as connection:
                for function, some in together.items():
                    found = function(connection, [one.item for one in some])
                    values.extend(zip(some, found, strict=True))
        except Exception as error:
            if len(current) == 1:
                current[0].done.set_exception(error)
                return
            # The one that fails must not take the others along. A database that cannot be written fails for each.
            if isinstance(error, sa.exc.OperationalError):
                for one in current:
                    one.done.set_exception(error)
                return
            for one in current:
                self._write([one])
            return
        for one, value in values:
            one.done.set_result(value)


def _add_what_is_new(connection: sa.Connection) -> None:
    """Add the columns and indexes that the tables of an earlier release lack."""
    inspector = sa.inspect(connection)
    for table in _tables.metadata.sorted_tables:
        there = {one["name"] for one in inspector.get_columns(table.name)}
        for column in table.columns:
            if column.name not in there:
                told = CreateColumn(column).compile(dialect=connection.dialect)
                connection.exec_driver_sql(f"ALTER TABLE {table.name} ADD COLUMN {told}")
        indexes = {one["name"] for one in inspector.get_indexes(table.name)}
        for index in table.indexes:
            if index.name not in indexes:
                index.create(connection)


def _call_each(
    connection: sa.Connection, functions: list[Callable[[sa.Connection], Any]]
) -> list[Any]:
    return [function(connection) for function in functions]


def _begin_postgresql(connection: sa.Connection) -> None:
    # Writers of several coordinators take turns, as they do on SQLite. Two that each lock rows of several jobs, in the
    # order in which those came, would wait for each other.
    if connection.get_execution_options().get(_WRITES, False):
        connection.exec_driver_sql(f"SET LOCAL lock_timeout = {_LOCK_MS}")
        connection.exec_driver_sql(f"SELECT pg_advisory_xact_lock({_WRITER})")


def _begin_sqlite(connection: sa.Connection) -> None:
    # A transaction that reads first and then writes would change what another process has changed since.
    is_writer = connection.get_execution_options().get(_WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if is_writer else "BEGIN")


def _prepare_sqlite(connection: Any, _record: Any) -> None:
    # Transactions are begun by _begin_sqlite: the driver would do so before the first change alone.
    connection.isolation_level = None
    cursor = connection.cursor()
    cursor.execute("PRAGMA journal_mode=WAL")
    # What was answered is on disk, after a power failure, too. Many decisions share one write.
    cursor.execute("PRAGMA synchronous=FULL")
    cursor.execute(f"PRAGMA busy_timeout={_LOCK_MS}")
    cursor.execute("PRAGMA cache_size=-65536")
    cursor.close()
