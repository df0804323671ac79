"""What tuning may do with a job: as the rollout rule says that takes it, unless an operator has said so of the job."""

from __future__ import annotations

from typing import Any

import pytest

from served_support import JOB, MANAGER, Served
from treadle.coordinator._jobs import Job
from treadle.coordinator._rules import Rule
from treadle.coordinator._tuning import Proposal, Tuning

PARTITIONS = "spark.sql.shuffle.partitions"
KEY = Job.of(JOB).recurring


def said(served: Served, key: str = KEY) -> tuple[str, bool]:
    """Return the mode of a job, and whether it is its own."""
    tuning = served.viewer.get(f"/api/recurring/{key}").json()["tuning"]
    return tuning["mode"], tuning["is_own"]


def set_mode(served: Served, mode: str) -> None:
    told = served.operator.post(f"/api/recurring/{KEY}/mode", json={"mode": mode})
    assert told.status_code == 200, told.text


def test_a_rule_says_how_the_jobs_that_it_takes_are_tuned(served: Served) -> None:
    rule = served.rule(names=["daily *"], tuning="apply")
    served.decided("a")
    served.decided("other", name="weekly")
    assert said(served) == ("apply", False)
    other = Job.of({**JOB, "name": "weekly"}).recurring
    assert said(served, other) == ("propose", False)
    # From a job's next run on.
    served.rule(id=rule["id"], names=["daily *"], tuning="watch")
    assert said(served) == ("apply", False)
    served.decided("b")
    assert said(served) == ("watch", False)
    lines = served.viewer.get("/api/audit").json()
    assert [one["what"] for one in lines if one["subject"] == KEY] == ["mode watch"]
    # Whoever shuffles elsewhere is taken by no rule, and changes nothing.
    served.decided("elsewhere", manager="org.example.Other")
    assert said(served) == ("watch", False)
    assert served.operator.delete(f"/api/rules/{rule['id']}").status_code == 200
    served.decided("c")
    assert said(served) == ("propose", False)


def test_a_rule_that_keeps_jobs_off_the_service_says_it_too(served: Served) -> None:
    served.rule(action="stock", tuning="apply")
    assert MANAGER not in served.decided("a")["settings"]
    assert said(served) == ("apply", False)


def test_what_an_operator_has_said_of_a_job_stays(served: Served) -> None:
    served.rule(tuning="apply")
    served.decided("a")
    set_mode(served, "watch")
    served.decided("b")
    assert said(served) == ("watch", True)
    set_mode(served, "rule")
    assert said(served) == ("apply", False)
    page = served.operator.get(f"/stories/{KEY}").text
    assert "as rule <a" in page
    set_mode(served, "propose")
    served.decided("c")
    assert said(served) == ("propose", True)
    assert "as an operator has said" in served.operator.get(f"/stories/{KEY}").text
    assert served.operator.post(f"/api/recurring/{KEY}/mode", json={"mode": "x"}).status_code == 422


def test_runs_of_a_new_job_that_come_together_have_the_mode_of_its_rule(served: Served) -> None:
    served.rule(tuning="apply")
    asked = [served.coordinator.decide({"id": f"r{n}", "job": JOB}) for n in range(5)]
    assert [one.result(60)["uses_service"] for one in asked] == [True] * 5
    assert said(served) == ("apply", False)
    assert served.viewer.get(f"/api/recurring/{KEY}").json()["runs"] == 5


def test_a_rule_that_says_watch_ends_a_trial() -> None:
    tuning = Tuning()
    assert tuning.follow(7, "apply", 0.0)
    assert not tuning.follow(7, "apply", 0.0)
    for _ in range(3):
        tuning.ended(100.0, 0, 0.0)
    change = tuning.proposed([Proposal("r", PARTITIONS, 200.0, 400.0, "e")], 0.0)
    assert change is not None
    assert change.state == "trying"
    assert tuning.follow(7, "watch", 1.0)
    assert (change.state, tuning.settings(1.0)) == ("rolled back", ({}, 0))


@pytest.mark.parametrize(
    ("kept", "is_own"),
    [({"mode": "apply"}, True), ({"mode": "watch"}, True), ({"mode": "propose"}, False), ({}, False)],
)  # fmt: skip
def test_modes_of_an_earlier_release_are_those_of_operators(kept: dict[str, Any], is_own) -> None:
    assert Tuning.of(kept).is_own is is_own


def test_a_mode_that_there_is_not_is_refused() -> None:
    with pytest.raises(ValueError, match="tuning of a rule must be one of watch, propose, apply"):
        Rule.of({"name": "r", "tuning": "always"})
