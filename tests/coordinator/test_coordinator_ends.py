"""Ends of jobs, and those that never report one: what counts as a failure, and who is taken off the service."""

from __future__ import annotations

import pytest

from served_support import Served


def test_an_end_counts_once(served: Served) -> None:
    served.rule()
    served.decide("j")
    assert served.end("j", failed=True, cause="service", error="no room")["state"] == "failed"
    assert served.end("j", failed=False) == {"id": "j", "state": "failed", "alerts": []}
    (alert,) = served.viewer.get("/api/alerts").json()
    assert alert["text"] == "daily * failed because of the service: no room"
    assert [one.kind for one in served.told] == ["failed"]
    assert served.job.post("/api/jobs/nobody/end", json={}).status_code == 404
    assert served.operator.post(f"/api/alerts/{alert['number']}/close").status_code == 200
    assert served.viewer.get("/api/alerts").json() == []
    assert served.viewer.get("/api/alerts?only_open=false").json()[0]["closed_by"] == "the operator"


def test_servers_that_a_run_has_lost_are_shown_and_told(served: Served) -> None:
    served.rule()
    for name, lost in (("none", 0), ("one", 1), ("three", 3)):
        served.decided(name)
        served.end(name, duration=10.0, lost_servers=lost)
    found = {one["job"]: one["text"] for one in served.viewer.get("/api/alerts").json()}
    assert found == {
        "one": "daily * lost a shuffle server with its rows, and went on",
        "three": "daily * lost 3 shuffle servers with its rows, and went on",
    }
    assert [one.kind for one in served.told] == ["lost servers", "lost servers"]
    assert served.viewer.get("/api/decisions/three").json()["lost_servers"] == 3
    assert "3 servers lost" in served.viewer.get("/jobs/three").text
    assert "3 lost" in served.viewer.get("/jobs").text
    # Those of a job on stock shuffle are not the service's.
    served.operator.post("/api/switch", json={"is_on": False})
    served.decided("stock")
    assert served.end("stock", duration=10.0, lost_servers=1)["alerts"] == []


def test_a_job_that_fails_twice_is_taken_off_until_it_is_put_back(served: Served) -> None:
    served.rule()
    for n in range(2):
        assert served.decide(f"j{n}")["uses_service"]
        served.end(f"j{n}", failed=True, cause="service")
    told = served.decide("j2")
    assert told["reason"] == "it failed 2 times in a row on the service"
    assert served.decide(name="another")["uses_service"]
    key = served.viewer.get("/api/decisions/j2").json()["recurring"]
    assert served.operator.post(f"/api/recurring/{key}/put-back").status_code == 200
    assert served.decide("j3")["uses_service"]


def test_old_jobs_are_forgotten_and_silent_ones_are_told(served: Served) -> None:
    for n in range(4):
        served.decide(f"j{n}")
        served.now += 3 * 24 * 3600
    served.end("j0", failed=True, cause="service")
    served.coordinator.forget(8)
    states = {one["id"]: one["state"] for one in served.viewer.get("/api/jobs").json()["jobs"]}
    assert states == {"j2": "silent", "j3": "silent"}
    # Its end still counts.
    assert served.end("j2", duration=1.0)["state"] == "finished"


def test_jobs_that_die_before_they_report_are_taken_off(served: Served) -> None:
    day = 24 * 3600.0
    served.rule()
    for name in ("one", "two"):
        assert served.decide(name)["uses_service"]
        served.now += 2 * day
        served.coordinator.forget(90)
        # Once for each run, however often it is looked at.
        served.coordinator.forget(90)
    told = served.decide("three")
    assert not told["uses_service"]
    assert told["reason"] == "it failed 2 times in a row on the service"
    (alert,) = served.viewer.get("/api/alerts").json()
    assert (alert["kind"], alert["job"]) == ("taken off", "two")
    assert [one.kind for one in served.told] == ["taken off"]


def test_a_late_end_takes_the_place_of_silence(served: Served) -> None:
    day = 24 * 3600.0
    served.rule()
    for n, end in enumerate(({"duration": 1.0}, {"failed": True})):
        assert served.decide(f"j{n}")["uses_service"]
        served.now += 2 * day
        served.coordinator.forget(90)
        served.end(f"j{n}", **end)
    # One failure, and not two.
    assert served.decide("next")["uses_service"]
    served.end("next", duration=1.0)
    # Silence of runs that were on stock shuffle says nothing of the service.
    served.operator.post("/api/switch", json={"is_on": False})
    for n in range(3):
        served.decide(f"stock{n}")
        served.now += 2 * day
        served.coordinator.forget(90)
    assert served.viewer.get("/api/alerts").json() == []


@pytest.mark.parametrize("runs", [2, 5])
def test_a_job_that_was_only_long_is_put_back(served: Served, runs: int) -> None:
    served.rule()
    for n in range(runs):
        assert served.decide(f"j{n}")["uses_service"]
    served.now += 25 * 3600.0
    served.coordinator.forget(90)
    assert not served.decide("other")["uses_service"]
    for n in range(runs):
        served.end(f"j{n}", duration=90_000.0)
        assert served.decide(f"after{n}")["uses_service"]
    lines = served.viewer.get("/api/audit").json()
    assert [one["who"] for one in lines if one["what"] == "put back"] == ["coordinator"]


def test_a_long_run_puts_no_job_back_that_failed(served: Served) -> None:
    served.rule()
    for name in ("long", "one", "two"):
        assert served.decide(name)["uses_service"]
    for name in ("one", "two"):
        served.end(name, failed=True, cause="service")
    served.now += 25 * 3600.0
    served.coordinator.forget(90)
    served.end("long", duration=90_000.0)
    assert not served.decide("next")["uses_service"]


def test_a_late_failure_leaves_a_job_off(served: Served) -> None:
    served.rule()
    for name in ("one", "two"):
        assert served.decide(name)["uses_service"]
    served.now += 25 * 3600.0
    served.coordinator.forget(90)
    for name in ("one", "two"):
        served.end(name, failed=True, cause="service")
        assert not served.decide(f"after {name}".replace(" ", "-"))["uses_service"]
    (alert,) = [
        one for one in served.viewer.get("/api/alerts").json() if one["kind"] == "taken off"
    ]
    assert alert["job"] == "two"
