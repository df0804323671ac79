"""Two coordinators on one PostgreSQL. Needs pgserver, which brings a server, and psycopg (`make test-postgresql`): without them it is left out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest
import sqlalchemy as sa

from treadle.coordinator import _store, _tables
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator
from treadle.coordinator._watching import Alert, End

pgserver = pytest.importorskip("pgserver")
pytest.importorskip("psycopg")

_THREADS, _ROUNDS, _TOGETHER = 6, 25, 6


def test_two_coordinators_do_not_wait_for_each_other(tmp_path: Path) -> None:
    """Each transaction changes rows of several jobs, in whatever order they come, and the row of the hour."""
    server = pgserver.get_server(tmp_path / "data", cleanup_mode="delete")
    url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    both = [Coordinator(url), Coordinator(url)]
    failures: list[BaseException] = []
    try:
        both[0].keep_rule(Rule("all"), "olga")
        both[1].refresh()

        def work(number: int) -> None:
            coordinator = both[number % 2]
            try:
                for round_ in range(_ROUNDS):
                    asked = {}
                    for n in range(_TOGETHER):
                        identity = f"{number}-{round_}-{n}"
                        name = f"job {'abcdefghijkl'[(n * 5 + number * 3 + round_) % 12]}"
                        body = {"id": identity, "job": {"name": name}}
                        asked[identity] = coordinator.decide(body)
                    for identity, future in asked.items():
                        future.result(60)
                        coordinator.ended(identity, End(duration=1.0)).result(60)
            except Exception as error:
                failures.append(error)

        threads = [threading.Thread(target=work, args=(n,)) for n in range(_THREADS)]
        for one in threads:
            one.start()
        for one in threads:
            one.join(300)
        assert failures == []
        hours = both[1].database.read(lambda c: _store.overview(c, 0))
        count = _THREADS * _ROUNDS * _TOGETHER
        assert sum(one["jobs"] for one in hours) == sum(one["ended"] for one in hours) == count
        recurring = both[1].database.read(lambda c: _store.recurring_page(c, 100))
        assert sum(one["runs"] for one in recurring) == count
    finally:
        for one in both:
            one.close()
        server.cleanup()


def test_lists_are_pages_of_it_and_a_database_of_before_gets_what_is_new(tmp_path: Path) -> None:
    server = pgserver.get_server(tmp_path / "data", cleanup_mode="delete")
    url = server.get_uri().replace("postgresql://", "postgresql+psycopg://")
    try:
        first = Coordinator(url, clock=lambda: 1_000_000.0)
        for n in range(12):
            job = {"name": f"{'ab'[n % 2]}_{'cdefghijklmn'[n]}", "queue": "etl", "user": "ann"}
            first.decide({"id": f"j{n}", "job": job}).result(60)
        first.close()
        engine = sa.create_engine(url)
        with engine.begin() as connection:
            connection.exec_driver_sql("ALTER TABLE recurring DROP COLUMN standing")
            connection.exec_driver_sql("DROP INDEX recurring_by_pattern")
        engine.dispose()
        again = Coordinator(url)
        read = again.database.read
        page = read(lambda c: _store.recurring_page(c, 5, queue="etl", name="a_"))
        at = (page[-1]["last"], page[-1]["key"])
        more = read(lambda c: _store.recurring_page(c, 5, before=at, queue="etl", name="a_"))
        assert (len(page), len(more)) == (5, 1)
        found = {one["pattern"] for one in page + more}
        assert found == {f"a_{one}" for one in "cegikm"}
        jobs = read(lambda c: _store.jobs_page(c, queue="etl", name="b_", user="ann", before=5))
        assert [one["id"] for one in jobs] == ["j3", "j1"]
        again.database.write_now(
            lambda c: _store.add_alerts(c, [Alert("slower", "a")], 1.0, "j0", page[0]["key"])
        )
        for name, count in (("a_", 1), ("b_", 0)):
            told = read(
                lambda c, name=name: _store.alerts_page(
                    c, only_open=True, before=None, limit=9, kind="slower", name=name
                )
            )
            assert len(told) == count
        for n in range(3):
            again.note("olga", "logged in", str(n))
        again.database.write_now(lambda c: _store.forget_logins(c, 2))
        told = read(lambda c: _store.audit_page(c, None, 9, "logins"))
        assert [one["subject"] for one in told] == ["2", "1"]
        names = {one["name"] for one in sa.inspect(again.database._engine).get_indexes("recurring")}
        assert names >= {one.name for one in _tables.recurring.indexes}
        again.close()
    finally:
        server.cleanup()
