"""Two coordinators on one PostgreSQL. Needs pgserver, which brings a server, and psycopg (`make test-postgresql`): without them it is left out."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from treadle.coordinator import _store
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator
from treadle.coordinator._watching import End

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
