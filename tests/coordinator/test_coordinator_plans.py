"""The fingerprint of a job's plans: what it does not depend on, and what a new one does to its history and its trial."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import zstandard

from planted import LOGS, lines_of
from served_support import JOB, Served
from treadle.coordinator import _store
from treadle.coordinator._event_log import read_application
from treadle.coordinator._jobs import Job
from treadle.coordinator._measures import Application
from treadle.coordinator._plans import Plans, shape_of_plan, shape_of_stage
from treadle.coordinator._tuning import Proposal, Tuning
from treadle.coordinator._watching import End

PARTITIONS = "spark.sql.shuffle.partitions"
KEY = Job.of(JOB).recurring
# Recorded jobs that differ in their rows and settings: with and without adaptive plans, with other partitions and splits.
SAME = [
    ("healthy", "healthy-12", "tiny-partitions", "tiny-partitions-2", "tiny-partitions-5"),
    ("healthy-3", "healthy-14", "tiny-partitions-3"),
    ("healthy-4", "healthy-15", "tiny-partitions-4", "few-tasks-5"),
    ("healthy-5", "healthy-16"),
    # It has several queries.
    ("healthy-9", "healthy-17"),
    ("healthy-8", "healthy-19"),
    ("healthy-11", "healthy-20"),
    ("tiny-splits", "tiny-splits-2", "tiny-splits-4"),
    ("tiny-splits-3", "tiny-splits-5"),
    ("skew", "skew-2", "skew-3", "skew-5"),
    ("broadcast", "broadcast-2", "broadcast-3", "broadcast-4", "broadcast-5"),
    ("few-tasks", "few-tasks-2", "few-tasks-4"),
    # The same query, as often as it likes.
    ("idle", "idle-2", "idle-3", "idle-4", "idle-5"),
    # These have no query: they are made of RDDs.
    ("healthy-7", "healthy-18"),
    ("retries", "retries-2", "retries-3", "retries-4", "retries-5"),
]


@cache
def plan_of(name: str) -> str:
    return read_application(lines_of(name)).plan


@pytest.mark.parametrize("names", SAME, ids=lambda names: names[0])
def test_runs_of_one_job_have_one_fingerprint(names: tuple[str, ...]) -> None:
    assert len({plan_of(name) for name in names}) == 1


def test_other_jobs_have_others() -> None:
    names = (
        "healthy", "healthy-3", "healthy-4", "healthy-5", "healthy-7", "healthy-8", "healthy-9", "healthy-11",
        "tiny-splits-3", "skew",
    )  # fmt: skip
    found = {name: plan_of(name) for name in names}
    assert all(found.values())
    assert len(set(found.values())) == len(names), found


@pytest.mark.parametrize("file", sorted(LOGS.glob("plans-*.zst")), ids=lambda file: file.stem)
def test_what_tuning_changes_is_in_no_fingerprint(file: Path) -> None:
    """Real Spark has planned each query with each setting that tuning changes, for other rows of another day, too."""
    plans: dict[str, list[str]] = json.loads(zstandard.decompress(file.read_bytes()))
    shapes = {name: set(map(shape_of_plan, some)) for name, some in plans.items()}
    assert {name: len(found) for name, found in shapes.items()} == dict.fromkeys(shapes, 1)
    # And each query has its own, but for two that differ in what joins them, and two in where a number comes from.
    assert len({next(iter(found)) for found in shapes.values()}) == len(shapes) - 2


def test_a_job_keeps_its_fingerprint_with_another_spark() -> None:
    shapes = []
    for file in LOGS.glob("plans-*.zst"):
        plans = json.loads(zstandard.decompress(file.read_bytes()))
        shapes.append({name: set(map(shape_of_plan, some)) for name, some in plans.items()})
    assert len(shapes) == 2
    assert shapes[0] == shapes[1]


def test_an_operator_that_is_below_itself_has_a_shape() -> None:
    text = (
        "== Physical Plan ==\nHashAggregate (1)\n+- ReusedExchange (2)\n\n\n"
        "(1) HashAggregate\nKeys: []\n\n(2) ReusedExchange [Reuses operator id: 2]\n"
    )
    assert shape_of_plan(text)


def test_how_a_plan_looks_while_it_runs_does_not_matter() -> None:
    """As in the plan of a query that reads what was cached."""
    initial = (
        "== Physical Plan ==\nAdaptiveSparkPlan (9)\n+- HashAggregate (8)\n   +- Exchange (7)\n      +- HashAggregate (6)\n"
        "         +- InMemoryTableScan (1)\n               +- InMemoryRelation (2)\n"
    )
    cached = "                     +- HashAggregate (4)\n                        +- Scan parquet a.b (3)\n"
    running = (
        "                     +- AdaptiveSparkPlan (10)\n"
        "                        +- == Final Plan ==\n"
        "                           * HashAggregate (9)\n"
        "                           +- AQEShuffleRead (8)\n"
        "                              +- LocalTableScan (7)\n"
        "                        +- == Initial Plan ==\n"
        "                           HashAggregate (4)\n"
        "                           +- Scan parquet a.b (3)\n"
    )
    assert shape_of_plan(initial + cached) == shape_of_plan(initial + running)
    assert shape_of_plan(initial + cached) != shape_of_plan(initial)


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ("*(1) Scan parquet default.t_20261129[a#1]", "*(4) Scan parquet b.u[c#2,d#3] PartitionFilters: [x = 7]"),
        ("+- BatchScan hdfs://a/2026-11-29 (1)", "+- BatchScan hdfs://b/2026-11-30 (17)"),
        ("Execute InsertIntoHadoopFsRelationCommand file:/a/1", "Execute InsertIntoHadoopFsRelationCommand file:/b (3)"),
        ("Sort (2)\n+- LocalTableScan (1)", "LocalTableScan (1)"),
    ],
)  # fmt: skip
def test_names_and_numbers_do_not_matter(one: str, other: str) -> None:
    head = "== Physical Plan ==\n"
    assert shape_of_plan(head + one) == shape_of_plan(head + other) != ""


def test_what_is_no_plan_has_no_shape() -> None:
    for text in (
        "",
        "\n\n",
        "== Physical Plan ==\n",
        "1 2 3",
        "(1) ReusedExchange [Reuses operator id: 1]",
    ):
        assert shape_of_plan(text) == ""
    itself = "ReusedExchange (1)\n\n(1) ReusedExchange [Reuses operator id: 1]"
    assert shape_of_plan(itself) == ""


def test_paths_are_in_no_fingerprint_of_rdds() -> None:
    def stage(day: str, line: int) -> list[dict[str, Any]]:
        return [
            {"Name": f"hdfs://a/{day}/*", "Callsite": f"textFile at /jobs/{day}/a.py:{line}"},
            {"Name": "MapPartitionsRDD", "Callsite": f"map at a.py:{line}"},
        ]

    assert shape_of_stage(stage("2026-11-29", 3)) == shape_of_stage(stage("2026-11-30", 4))
    assert shape_of_stage(stage("2026-11-29", 3)) != shape_of_stage(stage("2026-11-29", 3)[1:])


def test_a_plan_that_comes_back_twice_is_one_of_several() -> None:
    plans = Plans()
    changed = [plans.changed(one, float(at)) for at, one in enumerate("aaabbabcabac")]
    #                 a first, a new one, back, back again: both are its plans; then a new one, and so on.
    assert [at for at, one in enumerate(changed) if one] == [3, 5, 7, 8]
    assert sorted(plans.current) == ["a", "b", "c"]
    assert Plans.of(json.loads(json.dumps(plans.to_dict()))) == plans
    for n in range(100):
        plans.changed(f"new {n}", 0.0)
    assert len(plans.left) <= 20


def application(identity: str, plan: str, duration: float, **more: Any) -> Application:
    return Application(
        id=identity, name=JOB["name"], user=JOB["user"], queue=JOB["queue"], cluster=JOB["cluster"], plan=plan,
        decision=identity, began=1_000_000.0, ended=1_000_000.0 + duration, **more,
    )  # fmt: skip


def tuning_of(served: Served) -> dict[str, Any]:
    found: dict[str, Any] = served.viewer.get(f"/api/recurring/{KEY}").json()["tuning"]
    return found


class Runs:
    """Runs of a job, one after another; ``reports``: the plugin tells their ends before their logs are read."""

    def __init__(self, served: Served, reports: bool) -> None:
        self.served, self.reports, self.number = served, reports, 0

    def run(self, plan: str, duration: float, **more: Any) -> int:
        """Return the number of the change that it was run with."""
        self.number += 1
        self.served.now += 1000
        identity = f"r{self.number}"
        change: int = self.served.decided(identity)["change"]
        one = application(identity, plan, duration, **more)
        one.ended = self.served.now
        one.began = self.served.now - duration
        if self.reports:
            end = one.end()
            assert end is not None
            self.served.coordinator.ended(identity, end).result(60)
        self.served.coordinator.observed(one)
        return change

    def trial(self) -> None:
        """Have a change tried from the next run on."""
        coordinator = self.served.coordinator

        def begin(connection: Any) -> None:
            found = _store.recurring_of(connection, KEY)
            assert found is not None
            history, tuning = found
            tuning.set_mode("apply", 0.0)
            assert tuning.proposed([Proposal("r", PARTITIONS, 200.0, 400.0, "e")], 0.0)
            _store.keep_recurring(connection, Job.of(JOB), history, tuning, 0.0)

        coordinator.database.write_now(begin)


@pytest.mark.parametrize("reports", [False, True], ids=["by the log", "by the plugin first"])
@pytest.mark.parametrize("duration", [10.0, 900.0], ids=["faster", "slower"])
def test_a_trial_ends_when_the_job_changes(served: Served, reports: bool, duration: float) -> None:
    """Whatever the run took: it would be rolled back for being slower, and looks like a success if it is faster."""
    runs = Runs(served, reports)
    served.rule()
    for n in range(5):
        runs.run("old", 100.0 + n)
    runs.trial()
    assert runs.run("old", 100.0) == 1
    assert runs.run("new", duration) == 1
    (change,) = tuning_of(served)["changes"]
    assert (change["state"], change["reason"]) == (
        "ended", "the job changed: its queries have another plan",
    )  # fmt: skip
    # Runs before do not count: neither for the next trial, nor for what is usual.
    assert tuning_of(served)["recent"] == []
    for n in range(3):
        assert runs.run("new", duration + n) == 0
    tuning = tuning_of(served)
    assert tuning["recent"] == [duration, duration + 1, duration + 2]
    story = served.viewer.get(f"/api/recurring/{KEY}").json()
    assert len(story["history"]["runs"]) == 4
    assert served.viewer.get("/api/alerts").json() == []
    noted = [one for one in served.viewer.get("/api/audit").json() if one["what"] == "job changed"]
    assert [one["body"] for one in noted] == [{"run": "r7", "change": 1}]
    assert "runs before do not count" in served.viewer.get(f"/stories/{KEY}").text
    # It can be tried on the new job.
    runs.trial()
    assert runs.run("new", duration) == 2


@pytest.mark.parametrize("reports", [False, True], ids=["by the log", "by the plugin first"])
def test_a_run_with_part_of_its_queries_is_no_new_job(served: Served, reports: bool) -> None:
    runs = Runs(served, reports)
    served.rule()
    for _ in range(5):
        runs.run("old", 100.0)
    runs.run("part", 20.0, failed=True, error="ValueError: no")
    assert tuning_of(served)["recent"] == [100.0] * 5
    # One that still runs has come to some of them only.
    served.decided("running")
    running = application("running", "part", 5.0)
    running.ended = None
    served.coordinator.observed(running)
    story = served.viewer.get(f"/api/recurring/{KEY}").json()
    assert story["history"]["plans"]["current"] == ["old"]
    assert len(story["history"]["runs"]) == 5


def test_a_change_that_gives_the_job_another_plan_is_not_tried_for_ever() -> None:
    tuning = Tuning("apply")
    proposal = Proposal("r", PARTITIONS, 200.0, 400.0, "e")
    tried = 0
    for n in range(30):
        tuning.ended(100.0, 0, 0.0)
        if tuning.proposed([proposal], 0.0) is not None:
            tried += 1
            tuning.ended(50.0, tuning.last_number, 0.0)
            tuning.job_changed(f"r{n}", [], 0.0)
    assert tried == 2


def test_a_proposal_of_the_job_before_is_gone() -> None:
    tuning = Tuning()
    for _ in range(3):
        tuning.ended(100.0, 0, 0.0)
    change = tuning.proposed([Proposal("r", PARTITIONS, 200.0, 400.0, "e")], 0.0)
    assert change is not None
    assert tuning.job_changed("x", [7.0], 1.0) is None
    assert (change.state, tuning.recent) == ("ended", [7.0])
    with pytest.raises(ValueError, match="one change at a time"):
        tuning.begin(change, 1.0)


def test_a_history_of_an_earlier_release_has_no_plan(tmp_path: Path) -> None:
    from treadle.coordinator._watching import History

    old = {"runs": [[100.0, 5, True, 0, 7, 2, 3]], "failures": 1, "taken_off": "", "silent": 0}
    history = History.of(old)
    assert (history.runs[0].input_rows, history.plans) == (3, Plans())
    assert not history.has_changed("a", 5.0)
    assert len(history.runs) == 1
    assert history.has_changed("b", 6.0)
    assert history.runs == []
    assert End(duration=1.0).at is None
