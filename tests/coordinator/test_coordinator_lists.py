"""Lists of the pages and of the interface: pages, search and filters are the database's work, in one statement each."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from filled import fill
from served_support import GB, Served, of_sqlite
from treadle.coordinator import _store, _tables
from treadle.coordinator._app import app_of, place_of
from treadle.coordinator._pages import add_pages
from treadle.coordinator._server_list import server_list
from treadle.coordinator._service import Coordinator
from treadle.coordinator._tuning import Change, Tuning
from treadle.coordinator._watching import Alert, History

JOBS, NAMES, SERVERS = 10_000, 600, 1000


def servers() -> list[dict[str, Any]]:
    return [
        {"name": f"s{n:04}", "address": f"10.0.{n // 250}.{n % 250}:7791", "domain": f"rack-{n // 50}",
         "free_bytes": (n + 1) * GB, "held_bytes": (SERVERS - n) * GB, "full": n == 7, "leaving": n == 9,
         "waiting_requests": n % 64}
        for n in range(SERVERS)
    ]  # fmt: skip


@pytest.fixture(scope="module")
def large(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """10,000 jobs, 600 recurring ones, 900 alerts, and 1,000 servers."""
    served = Served(f"sqlite:///{tmp_path_factory.mktemp('large')}/c.db")
    served.app = app_of(served.coordinator, served.access, servers=servers)
    add_pages(served.app)
    served.viewer = served.client("viewer")
    fill(served.coordinator, served.now, JOBS, 1.0, NAMES)

    def more(connection: sa.Connection) -> None:
        rows = _store.recurring_page(connection, NAMES)
        for n, row in enumerate(rows[:300]):
            kind = ("failed", "slower", "fell back")[n % 3]
            _store.add_alerts(
                connection, [Alert(kind, f"{row['pattern']}: {n}")] * 3, served.now, "j", row["key"]
            )

    served.coordinator.database.write_now(more)
    yield served
    served.coordinator.close()


@contextmanager
def statements(served: Served) -> Iterator[list[str]]:
    """What the database is asked, but for where transactions begin."""
    told: list[str] = []

    def note(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if not statement.startswith(("BEGIN", "PRAGMA")):
            told.append(statement)

    engine = served.coordinator.database._engine
    sa.event.listen(engine, "before_cursor_execute", note)
    try:
        yield told
    finally:
        sa.event.remove(engine, "before_cursor_execute", note)


PATHS = [
    *("/jobs", "/jobs?before=5000", "/jobs?name=daily", "/jobs?queue=etl&cluster=batch-a"),
    *("/jobs?user=ann&state=failed", "/jobs?verdict=stock&name=weekly%20users"),
    *("/stories", "/stories?name=hourly", "/stories?user=ann&queue=etl", "/stories?standing=kept"),
    *("/alerts", "/alerts?all=1&kind=slower", "/alerts?name=daily", "/audit", "/audit?of=logins"),
]


@pytest.mark.parametrize("path", [*PATHS, "/jobs/app-1-5"])
def test_a_view_is_one_statement(large: Served, path: str) -> None:
    with statements(large) as told:
        assert large.viewer.get(path).status_code == 200
    assert len(told) == 1, told


@pytest.mark.parametrize("path", ["/servers", "/servers?name=s00&state=open", "/rules"])
def test_what_is_known_anyway_is_no_statement(large: Served, path: str) -> None:
    with statements(large) as told:
        assert large.viewer.get(path).status_code == 200
    assert told == []


@of_sqlite
@pytest.mark.parametrize(
    ("path", "indexes"),
    [
        ("/jobs?queue=etl&cluster=batch-a", "jobs_by_(queue|cluster)"),
        ("/jobs?user=ann&state=failed", "jobs_by_(user|state)"),
        ("/jobs?name=weekly%20users", "jobs_by_name"),
        ("/stories", "recurring_by_last"),
        ("/stories?user=ann&queue=etl", "recurring_by_(user|queue)"),
        ("/stories?user=ann&before=900000,x", "recurring_by_user"),
        ("/stories?cluster=batch-a", "recurring_by_cluster"),
        ("/stories?standing=kept", "recurring_by_standing"),
        ("/stories?name=hourly", "recurring_by_pattern"),
        ("/alerts?all=1&kind=slower", "alerts_by_kind"),
        ("/alerts?name=daily", "recurring_by_pattern"),
        ("/audit?of=logins", "audit_by_what"),
    ],
)
def test_a_view_finds_its_rows_by_an_index(large: Served, path: str, indexes: str) -> None:
    engine = large.coordinator.database._engine
    plans: list[str] = []

    def explain(_connection: Any, cursor: Any, statement: str, values: Any, *_: Any) -> None:
        if statement.startswith("SELECT"):
            cursor.execute(f"EXPLAIN QUERY PLAN {statement}", values)
            plans.extend(str(row[3]) for row in cursor.fetchall())

    sa.event.listen(engine, "before_cursor_execute", explain)
    try:
        assert large.viewer.get(path).status_code == 200
    finally:
        sa.event.remove(engine, "before_cursor_execute", explain)
    assert any(re.search(rf" USING (COVERING )?INDEX {indexes}\b", one) for one in plans), plans
    if "name=" not in path and "audit" not in path:
        # Rows come in their order: those of a page are all that is read.
        assert not any("TEMP B-TREE" in one for one in plans), plans


def pages_of(served: Served, path: str, kind: str, limit: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    before: Any = ""
    while before is not None:
        sign = "&" if "?" in path else "?"
        more = f"&before={before}" if before else ""
        told = served.viewer.get(f"{path}{sign}limit={limit}{more}").json()
        found += told[kind]
        before = told["before"]
    return found


@pytest.mark.parametrize("wanted", [{}, {"user": "ann"}, {"queue": "etl", "cluster": "batch-a"}])
def test_pages_of_recurring_jobs_have_each_once(large: Served, wanted) -> None:
    query = "&".join(f"{name}={value}" for name, value in wanted.items())
    found = pages_of(large, f"/api/recurring?{query}", "recurring", 37)
    every = large.coordinator.database.read(lambda c: _store.recurring_page(c, NAMES))
    assert len(every) == NAMES
    like = [one for one in every if all(one[name] == value for name, value in wanted.items())]
    assert like
    assert [one["key"] for one in found] == [one["key"] for one in like]


def test_recurring_jobs_that_ran_at_the_same_moment_are_on_one_page_each(served: Served) -> None:
    for name in "abcdefg":
        served.decide(name, name=name)
    found = pages_of(served, "/api/recurring", "recurring", 2)
    assert sorted(one["pattern"] for one in found) == list("abcdefg")
    assert served.viewer.get("/api/recurring?before=x").status_code == 422
    assert served.viewer.get("/stories?before=x").status_code == 200
    assert place_of("nan,x") is None
    assert place_of("1.5,x") == (1.5, "x")


@pytest.fixture(scope="module")
def every(large: Served) -> list[dict[str, Any]]:
    """All jobs, the latest first."""
    return large.coordinator.database.read(lambda c: _store.jobs_page(c, limit=JOBS + 1))


def test_jobs_are_found_by_their_queue_and_cluster(large: Served, every) -> None:
    found = pages_of(large, "/api/jobs?queue=reports&cluster=batch-b&user=bob", "jobs", 150)
    assert len(every) == JOBS
    wanted = ("reports", "batch-b", "bob")
    like = [one["id"] for one in every if (one["queue"], one["cluster"], one["user"]) == wanted]
    assert len(like) > 150
    assert [one["id"] for one in found] == like


@pytest.mark.parametrize("many", [10, 20_000])
@pytest.mark.parametrize("begins", ["daily", "weekly users", "daily orders a", "%", "_"])
def test_names_are_found_by_how_they_begin(
    large: Served, every, begins: str, many: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the index of names, and, where very many begin so, without it."""
    monkeypatch.setattr(_store, "_MANY", many)
    like = [one for one in every if one["name"].startswith(begins)]
    assert bool(like) is (len(begins) > 1)
    found = large.coordinator.database.read(lambda c: _store.jobs_page(c, limit=JOBS, name=begins))
    assert found == like
    told = large.viewer.get(f"/api/jobs?limit=20&name={quote(begins)}").json()["jobs"]
    assert [one["id"] for one in told] == [one["id"] for one in like[:20]]


def test_recurring_jobs_are_found_by_what_most_needs_to_be_known(served: Served) -> None:
    for name in "abcd":
        served.decide(name, name=name)

    def write(connection: sa.Connection) -> None:
        from treadle.coordinator._jobs import Job

        for row in _store.recurring_page(connection, 9):
            job = Job(**{one: row[one] for one in ("cluster", "queue", "user", "engine")}, name=row["pattern"])  # fmt: skip
            states = {
                "a": ("kept",),
                "b": ("kept", "trying"),
                "c": ("rolled back",),
                "d": ("kept",),
            }
            changes = [
                Change(n, "r", "p", None, 1.0, "e", state)
                for n, state in enumerate(states[job.name])
            ]
            off = "it failed" if job.name == "d" else ""
            _store.keep_recurring(
                connection, job, History(taken_off=off), Tuning(changes=changes), 0.0
            )

    served.coordinator.database.write_now(write)
    for standing, names in {"kept": "a", "trying": "b", "taken off": "d", "proposed": ""}.items():
        told = served.viewer.get("/api/recurring", params={"standing": standing}).json()
        assert [one["pattern"] for one in told["recurring"]] == list(names)


def test_alerts_are_found_by_their_kind_and_job(large: Served) -> None:
    def count(query: str) -> int:
        return len(large.viewer.get(f"/api/alerts?limit=500&{query}").json())

    assert count("kind=failed") == count("kind=slower") == 300
    assert count("kind=none") == 0
    rows = large.viewer.get("/api/alerts?limit=500&name=daily%20orders").json()
    assert rows
    assert all(one["text"].startswith("daily orders") for one in rows)
    kinds = large.viewer.get("/alerts?all=1&kind=slower").text
    assert "tag slower" in kinds
    assert "tag failed" not in kinds


def test_servers_are_found_in_pages(large: Served) -> None:
    told = large.viewer.get("/api/servers").json()
    assert (told["found"], told["pages"], len(told["servers"])) == (SERVERS, 10, 100)
    assert told["servers"][0]["name"] == "s0000"
    last = large.viewer.get("/api/servers?order=name&page=10").json()["servers"]
    assert [one["name"] for one in last] == [f"s{n:04}" for n in range(900, 1000)]
    busiest = large.viewer.get("/api/servers?order=load&limit=5").json()["servers"]
    assert {one["waiting_requests"] for one in busiest} == {63}
    rack = large.viewer.get("/api/servers?domain=rack-3").json()
    assert rack["found"] == 50
    for state, name in {"full": "s0007", "leaving": "s0009"}.items():
        (one,) = large.viewer.get(f"/api/servers?state={state}").json()["servers"]
        assert (one["name"], one["state"]) == (name, state)
    assert large.viewer.get("/api/servers?name=10.0.3.249").json()["servers"][0]["name"] == "s0999"
    page = large.viewer.get("/servers?state=open&page=2").text
    # Two maps have a cell for each that is found; the table has a page of them.
    assert page.count('<i class="u') == 2 * 998
    assert page.count("<tr>") == 101
    assert "2 of 10, 998 servers" in page


def test_a_server_of_which_little_is_known_is_listed() -> None:
    found = server_list([{"address": "a:1", "name": None, "free_bytes": None}], order="load")
    assert (found.rows[0]["used"], found.rows[0]["busy"], found.rows[0]["state"]) == (None, None, "open")  # fmt: skip
    assert server_list([], page=7).page == 1


@of_sqlite
def test_a_database_of_before_gets_what_is_new(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    first = Served(url)
    first.decide("one")
    first.coordinator.close()
    with closing(sqlite3.connect(tmp_path / "c.db")) as raw:
        for index in (*_tables.recurring.indexes, *_tables.jobs.indexes):
            raw.execute(f"DROP INDEX {index.name}")
        raw.execute("ALTER TABLE recurring DROP COLUMN standing")
        raw.commit()
    again = Coordinator(url)
    (row,) = again.database.read(lambda c: _store.recurring_page(c, 9, standing=""))
    assert (row["pattern"], row["standing"]) == ("daily *", "")
    inspector = sa.inspect(again.database._engine)
    for table in (_tables.recurring, _tables.jobs):
        names = {one["name"] for one in inspector.get_indexes(table.name)}
        assert names >= {one.name for one in table.indexes}
    again.close()
