"""Decisions that come in the same few milliseconds are written together, and each is what it would be alone."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from treadle.coordinator import _store
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator
from treadle.coordinator._watching import End


@pytest.fixture
def coordinator(tmp_path: Path) -> Iterator[Coordinator]:
    one = Coordinator(f"sqlite:///{tmp_path}/c.db")
    one.keep_rule(Rule("etl", queues=("etl",)), "olga")
    yield one
    one.close()


def at_once(coordinator: Coordinator, questions: list[dict], *also: Callable) -> list:
    """Have all questions, and other writes, wait for one transaction."""
    begun, go = threading.Event(), threading.Event()

    def hold(_connection: object) -> None:
        begun.set()
        assert go.wait(60)

    holding = coordinator.database.write(hold, 60)
    assert begun.wait(60)
    futures = [coordinator.decide(one) for one in questions]
    futures += [coordinator.database.write(one, 60) for one in also]
    go.set()
    holding.result(60)
    return futures


def test_decisions_of_one_transaction(coordinator: Coordinator) -> None:
    names = [f"daily {n}" for n in range(30)] + [f"weekly {n} users" for n in range(10)]
    questions = [
        {"id": f"r{n}", "job": {"queue": "etl" if n % 2 else "adhoc", "name": name}}
        for n, name in enumerate(names)
    ]
    # One that is known, and one that comes twice.
    first = coordinator.decide(questions[3]).result(60)
    told = [one.result(60) for one in at_once(coordinator, [*questions, questions[5]])]
    assert told[3] == first
    assert told[-1] == told[5]
    assert [one["id"] for one in told[:-1]] == [one["id"] for one in questions]
    assert [one["uses_service"] for one in told[:-1]] == [bool(n % 2) for n in range(40)]
    rows = coordinator.database.read(lambda c: _store.jobs_page(c, limit=100))
    assert len(rows) == 40
    recurring = coordinator.database.read(lambda c: _store.recurring_page(c, 100))
    runs = {(one["pattern"], one["queue"]): one["runs"] for one in recurring}
    assert runs == {
        ("daily *", "etl"): 15, ("daily *", "adhoc"): 15,
        ("weekly * users", "etl"): 5, ("weekly * users", "adhoc"): 5,
    }  # fmt: skip
    hours = coordinator.database.read(lambda c: _store.overview(c, 0))
    assert {one["verdict"]: one["jobs"] for one in hours} == {"service": 20, "stock": 20}


def test_one_that_cannot_be_written_takes_no_other_along(coordinator: Coordinator) -> None:
    def fail(_connection: object) -> None:
        raise ZeroDivisionError

    questions = [{"id": f"r{n}", "job": {"name": "daily"}} for n in range(3)]
    *futures, failing = at_once(coordinator, questions, fail)
    with pytest.raises(ZeroDivisionError):
        failing.result(60)
    assert [one.result(60)["id"] for one in futures] == ["r0", "r1", "r2"]


def test_what_a_run_pushes_counts_for_those_of_the_same_transaction(tmp_path: Path) -> None:
    from treadle.coordinator._admission import Room

    one = Coordinator(f"sqlite:///{tmp_path}/c.db", room=lambda: Room(2, 10_000, 10_000))
    try:
        one.keep_rule(Rule("all"), "olga")
        for n in range(3):
            one.decide({"id": f"first-{n}", "job": {"name": "daily"}}).result(60)
            one.ended(f"first-{n}", End(duration=1.0, shuffle_bytes=1500)).result(60)
        # 1,800 bytes in two copies each: two of them fit into 9,000.
        futures = at_once(one, [{"id": f"r{n}", "job": {"name": "daily"}} for n in range(4)])
        assert [found.result(60)["uses_service"] for found in futures] == [True, True, False, False]
    finally:
        one.close()


def test_what_a_job_is_expected_to_push_is_a_setting_of_its_shuffles(tmp_path: Path) -> None:
    one = Coordinator(f"sqlite:///{tmp_path}/c.db")
    expected = "spark.treadle.expectedBytes"
    try:
        one.keep_rule(Rule("all"), "olga")

        def decide(number: int, **more: object) -> dict[str, str]:
            question = {"id": f"r{number}", "job": {"name": "daily"}, **more}
            return one.decide(question).result(60)["settings"]  # type: ignore[no-any-return]

        assert expected not in decide(0), "nothing is known of it"
        one.ended("r0", End(duration=1.0, shuffle_bytes=1500)).result(60)
        assert decide(1)[expected] == "1800"
    finally:
        one.close()
