"""SQL over the spans of a history file, by DuckDB."""

from __future__ import annotations

from typing import Any

__all__ = ["answer"]

_KINDS = ((0, "task"), (2, "fetch"), (3, "spill"), (4, "shuffle"), (5, "cast"))
_DTYPES = {
    **dict.fromkeys(("start", "read", "computed", "end", "object", "bytes"), "u8"),
    **dict.fromkeys(("group", "worker", "lane"), "u2"),
    **dict.fromkeys(("kind", "failed"), "u1"),
}
# Times are seconds since the scheduler began. Values of tasks with a key are few: those of more than 2 ms.
_VIEWS = (
    """
    create view spans as select
        k.text as kind,
        case when r.kind <> 2 then g.text end as name,
        y.text as key, w.text as worker, w.id as worker_id, r.lane,
        r.start / 1e9 as start, r.end / 1e9 as stop, (r.end - r.start) / 1e9 as seconds,
        (r.read - r.start) / 1e9 as reading, r.bytes, r.failed = 1 as failed, p.text as source
    from raw_spans r
    join raw_kinds k on k.number = r.kind
    left join raw_groups g on g.number = r.group
    left join raw_workers w on w.number = r.worker
    left join raw_workers p on p.number = r.group and r.kind = 2
    left join raw_keys y on y.number = r.object and r.kind = 0
    """,
    """
    create view groups as select
        name, count(*) as runs, sum(failed::int) as failed, sum(seconds) as seconds, avg(seconds) as mean,
        median(seconds) as median, max(seconds) as max, sum(reading) as reading, sum(bytes) as bytes,
        min(start) as start, max(stop) as stop
    from spans where kind = 'task' group by name
    """,
    # By id: a worker that came again has another one, and the same name.
    """
    create view workers as select
        w.text as worker, w.id, count(s.kind) as runs, coalesce(sum(s.seconds), 0) as seconds,
        sum(s.failed::int) as failed, min(s.start) as start, max(s.stop) as stop
    from raw_workers w left join spans s on s.worker_id = w.id and s.kind = 'task' group by w.text, w.id
    """,
    """
    create view transfers as select
        source, worker, count(*) as count, sum(bytes) as bytes, sum(seconds) as seconds, sum(failed::int) as failed
    from spans where kind = 'fetch' group by source, worker
    """,
)


def answer(tables: dict[str, Any], statement: str) -> tuple[list[str], list[tuple[Any, ...]]]:
    """Return the names of the columns of an answer, and its rows.

    Parameters
    ----------
    tables
        As ``treadle._core.History.tables`` has them.
    statement
        SQL over ``spans``, ``groups``, ``workers`` and ``transfers``.

    Raises
    ------
    ImportError
        DuckDB or NumPy is not installed.
    ValueError
        DuckDB refuses the statement.
    """
    try:
        import duckdb
        import numpy as np
    except ImportError as error:
        raise ImportError(f"SQL needs DuckDB: pip install 'treadle[sql]' ({error})") from None
    connection = duckdb.connect()
    try:
        raw = {name: np.frombuffer(tables[name], dtype) for name, dtype in _DTYPES.items()}
        numbered = {
            "kinds": (_KINDS, {}),
            "groups": (list(enumerate(tables["groups"])), {}),
            "workers": (
                [(row, name) for row, (_, name) in enumerate(tables["workers"])],
                {"id": np.array([number for number, _ in tables["workers"]], "u4")},
            ),
            # A value of a task that ran again has its key twice.
            "keys": (list(dict(tables["keys"]).items()), {}),
        }
        connection.register("raw_spans", raw)
        for name, (rows, more) in numbered.items():
            columns = {
                "number": np.array([number for number, _ in rows], "u8"),
                "text": np.array([text for _, text in rows], object),
                **more,
            }
            connection.register(f"raw_{name}", columns)
        for view in _VIEWS:
            connection.execute(view)
        found = connection.execute(statement)
        names = [column[0] for column in found.description or ()]
        return names, found.fetchall()
    except duckdb.Error as error:
        raise ValueError(f"SQL: {error}") from None
    finally:
        connection.close()
