"""Decisions, rules and alerts over HTTP, and who may do what."""

from __future__ import annotations

import json
import sqlite3
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest
import sqlalchemy as sa
from fastapi.testclient import TestClient

from served_support import GB, JOB, MANAGER, Served, of_sqlite
from treadle.coordinator import _store
from treadle.coordinator._access import Access, read_tokens
from treadle.coordinator._admission import Room
from treadle.coordinator._jobs import Job
from treadle.coordinator._tuning import Proposal


def test_a_decision_is_kept_and_has_a_reason(served: Served) -> None:
    assert served.decide()["reason"] == "no rule takes it"
    rule = served.rule(users=["ann"], settings={"spark.treadle.compression": "zstd"})
    told = served.decide("one")
    assert told == {
        "id": "one", "uses_service": True, "reason": "rule 'r' takes it", "rule": rule["id"], "rule_version": 1,
        "copies": 2, "change": 0, "predicted_bytes": None,
        "settings": {
            MANAGER: "io.treadle.spark.TreadleShuffleManager", "spark.treadle.servers": "etcd://e/t",
            "spark.treadle.compression": "zstd",
        },
    }  # fmt: skip
    # The same question has the same answer, whatever has changed since.
    served.operator.post("/api/switch", json={"is_on": False})
    assert served.decide("one") == told
    assert served.decide("two")["reason"] == "the service is switched off for all jobs"
    kept = served.viewer.get("/api/decisions/one").json()
    assert (kept["name"], kept["state"], kept["verdict"]) == (JOB["name"], "running", "service")


def test_the_users_own_settings_win(served: Served) -> None:
    served.rule()
    told = served.decide(manager="org.apache.celeborn.Manager")
    assert not told["uses_service"]
    assert told["reason"] == "the user's own settings name org.apache.celeborn.Manager"
    assert served.decide(manager="io.treadle.spark.TreadleShuffleManager", names=[MANAGER])[
        "uses_service"
    ]
    assert "spark.treadle.servers" not in served.decide(names=["spark.treadle.servers"])["settings"]


def test_dask_gets_its_own_settings(served: Served) -> None:
    served.rule()
    assert served.decide(engine="dask")["settings"] == {"treadle.shuffle.servers": "etcd://e/t"}


def test_decisions_survive_the_process(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/c.db"
    one = Served(url)
    one.rule()
    told = one.decide("x")
    one.coordinator.close()
    assert (tmp_path / "c.db").stat().st_mode & 0o077 == 0
    other, third = Served(url), Served(url)
    assert other.decide("x") == told
    # Two processes of one database have the same rules soon.
    third.rule(name="s")
    other.coordinator.refresh()
    assert len(other.coordinator.rules) == 2
    third.coordinator.close()
    other.operator.delete("/api/rules/2")
    assert [rule.name for rule in other.coordinator.rules] == ["r"]
    other.coordinator.close()


def test_rules_have_versions_with_authors(served: Served) -> None:
    rule = served.rule(percent=10)
    served.rule(**{**rule, "percent": 50})
    history = served.viewer.get(f"/api/rules/{rule['id']}/history").json()
    assert [(one["version"], one["author"], one["note"], one["body"]["percent"]) for one in history] == [
        (2, "the operator", "why", 50), (1, "the operator", "why", 10),
    ]  # fmt: skip
    assert served.operator.delete(f"/api/rules/{rule['id']}").status_code == 200
    assert served.viewer.get("/api/rules").json()["rules"] == []
    assert len(served.viewer.get(f"/api/rules/{rule['id']}/history").json()) == 3
    assert served.operator.post("/api/rules", json={"rule": {**rule}}).status_code == 404
    assert [one["what"] for one in served.viewer.get("/api/audit").json()] == [
        "rule deleted", "rule changed", "rule made",
    ]  # fmt: skip


def test_a_rule_gives_no_setting_that_names_code(served: Served) -> None:
    rule = {"name": "r", "settings": {"spark.driver.extraJavaOptions": "-javaagent:/x.jar"}}
    told = served.operator.post("/api/rules", json={"rule": rule})
    assert told.status_code == 422
    assert "spark.driver.extraJavaOptions" in told.json()["detail"]
    assert served.coordinator.rules == ()


def test_a_rule_is_tried_on_jobs_of_the_past(served: Served) -> None:
    for n in range(6):
        served.decide(f"j{n}", user="ann" if n < 4 else "bob", name=f"job {n}")
        served.end(f"j{n}", duration=1.0, shuffle_bytes=100)
    body = {
        "rule": {"name": "r", "users": ["ann"]},
        "begin": served.now - 10,
        "end": served.now + 10,
    }
    told = served.viewer.post("/api/rules/try", json=body).json()
    assert told["sentence"] == "would have taken 4 of 6 jobs, 67 % of the bytes; 4 decisions change"


def test_a_new_rule_is_tried_with_the_id_that_it_gets(served: Served) -> None:
    """The id chooses the jobs of a share."""
    served.rule(is_on=False)
    letters = str.maketrans("0123456789", "abcdefghij")
    for n in range(40):
        served.decide(f"j{n}", name="job " + str(n).translate(letters))
    rule = {"name": "half", "percent": 50}
    told = served.viewer.post(
        "/api/rules/try", json={"rule": rule, "begin": served.now - 10, "end": served.now + 10}
    ).json()
    served.rule(**rule)
    names = ["job " + str(n).translate(letters) for n in range(40)]
    taken = {
        name for n, name in enumerate(names) if served.decide(f"k{n}", name=name)["uses_service"]
    }
    assert told["taken"] == len(taken)
    assert set(told["examples"]) <= taken


PARTITIONS = "spark.sql.shuffle.partitions"


def trial(served: Served) -> str:
    """Have a change of the job tried from its next run on; return the job's key."""
    for n in range(3):
        served.decide(f"before{n}")
        served.end(f"before{n}", duration=100.0)
    key = served.viewer.get("/api/decisions/before0").json()["recurring"]

    def begin(connection) -> None:
        history, tuning = _store.recurring_of(connection, key)
        tuning.set_mode("apply", 0.0)
        assert tuning.proposed([Proposal("r", PARTITIONS, 200.0, 400.0, "e")], 0.0)
        _store.keep_recurring(connection, Job.of(JOB), history, tuning, 0.0)

    served.coordinator.database.write_now(begin)
    assert served.decide("first")["change"] == 1
    return key


def changes(served: Served, key: str) -> list[tuple[str, str]]:
    found = served.viewer.get(f"/api/recurring/{key}").json()["tuning"]["changes"]
    return [(one["state"], one["reason"]) for one in found]


def test_no_setting_is_given_while_all_is_switched_off(served: Served) -> None:
    trial(served)
    served.operator.post("/api/switch", json={"is_on": False})
    told = served.decide("off")
    assert (told["settings"], told["change"]) == ({}, 0)


def test_a_kept_change_is_undone_by_its_number(served: Served) -> None:
    key = trial(served)
    served.end("first", duration=50.0)
    for n in range(2):
        served.decide(f"with{n}")
        served.end(f"with{n}", duration=50.0)
    assert changes(served, key)[0][0] == "kept"
    assert served.decide("kept")["settings"] == {PARTITIONS: "400"}
    path = f"/api/recurring/{key}/changes/1/end"
    assert served.operator.post(path).status_code == 200
    assert changes(served, key) == [("rolled back", "the operator ended it")]
    assert served.decide("after")["settings"] == {}
    assert served.operator.post(path).status_code == 422


def test_a_setting_that_the_user_gives_ends_its_trial(served: Served) -> None:
    key = trial(served)
    assert served.decide("own", names=[PARTITIONS])["settings"] == {}
    assert changes(served, key) == [("rolled back", "the user gives it")]


def test_a_trial_whose_runs_report_no_end_pauses_and_ends(served: Served) -> None:
    key = trial(served)
    assert served.decide("second")["change"] == 1
    served.now += 299
    assert served.decide("soon")["change"] == 1
    served.now += 2
    # Two of its runs have had no end for three times the usual duration.
    assert served.decide("late")["change"] == 0
    served.end("second", duration=100.0)
    assert served.decide("again")["change"] == 1
    served.now += 24 * 3600 + 1
    served.coordinator.forget(90)
    assert changes(served, key) == [("rolled back", "nobody reported the end of a run with it")]


def test_a_run_whose_driver_died_early_keeps_no_change(served: Served) -> None:
    key = trial(served)
    for n in range(2):
        served.decide(f"u{n}")
    usual = {"shuffle_bytes": 1000, "input_bytes": 5000}

    def history(connection) -> None:
        found, tuning = _store.recurring_of(connection, key)
        found.runs = [replace(one, **usual) for one in found.runs]
        _store.keep_recurring(connection, Job.of(JOB), found, tuning, 0.0)

    served.coordinator.database.write_now(history)
    for identity in ("first", "u0", "u1"):
        assert changes(served, key)[0][0] == "trying"
        served.end(identity, duration=5.0, shuffle_bytes=10, input_bytes=50)
    assert changes(served, key) == [
        ("rolled back", "3 runs with it did less than half of what is usual")
    ]


def test_a_run_that_fell_back_is_compared_with_none_on_the_service(served: Served) -> None:
    served.rule()
    for n, fallbacks in enumerate((0, 2, 0)):
        served.decide(f"j{n}")
        served.end(f"j{n}", duration=100.0 * (1 + fallbacks), fallbacks=fallbacks)
    key = Job.of(JOB).recurring
    _, tuning = served.coordinator.database.read(lambda c: _store.recurring_of(c, key))
    assert tuning.recent == [100.0, 100.0]


@of_sqlite
def test_two_coordinators_of_one_database_take_turns(served: Served, tmp_path: Path) -> None:
    """What one of them reads to change it, the other one must not change in between."""

    def write(_connection: sa.Connection) -> None:
        with (
            closing(sqlite3.connect(tmp_path / "c.db", timeout=0)) as other,
            pytest.raises(sqlite3.OperationalError, match="locked"),
        ):
            other.execute("BEGIN IMMEDIATE")

    served.coordinator.database.write_now(write)


def test_what_was_predicted_stands_beside_what_happened(served: Served) -> None:
    served.rule()
    for n in range(5):
        served.decide(f"j{n}")
        served.end(f"j{n}", duration=10.0, shuffle_bytes=10 * GB)
    served.room = Room(4, 100 * GB, 200 * GB)
    told = served.decide("next")
    assert told["predicted_bytes"] == 12 * GB
    # Its bytes, twice, are promised to it: the next ones do not fit.
    for n in range(3):
        assert served.decide(f"more{n}")["uses_service"] is (n < 2)
    assert served.decide("last")["reason"] == (
        "rule 'r' takes it, but 12.0 GB are expected in two copies, and only 8.0 GB are free"
    )
    served.end("next", duration=9.0, shuffle_bytes=7 * GB)
    row = served.viewer.get("/api/decisions/next").json()
    assert (row["predicted_bytes"], row["shuffle_bytes"]) == (12 * GB, 7 * GB)
    assert served.decide("again")["uses_service"]


def test_the_clock_is_set_back(served: Served) -> None:
    served.rule()
    served.decide("j")
    served.now -= 5000
    assert served.end("j")["state"] == "finished"
    assert served.viewer.get("/api/decisions/j").json()["duration"] == 0
    assert served.decide("k")["uses_service"]


@pytest.mark.parametrize(
    ("body", "words"),
    [
        ({}, "job"), ({"job": {"name": 1}}, "name"), ({"job": {"name": "x" * 500}}, "name"),
        ({"job": {}, "id": "../x"}, "id"), ({"job": {}, "id": 5}, "id"), ({"job": {}, "names": "x"}, "names"),
        ({"job": {}, "manager": 1}, "manager"),
    ],
)  # fmt: skip
def test_malformed_questions_are_refused_by_name(served: Served, body, words) -> None:
    told = served.job.post("/api/decisions", json=body)
    assert told.status_code == 422
    assert words in told.json()["detail"]


def test_text_that_no_database_keeps_is_refused(served: Served) -> None:
    for name in ("\\ud800", "\\u0000"):
        body = '{"job": {"name": "' + name + '"}}'
        told = served.job.post(
            "/api/decisions", content=body, headers={"Content-Type": "application/json"}
        )
        assert told.status_code == 422, told.text
    served.decide("j")
    body = '{"failed": true, "error": "\\ud800 \\u0000"}'
    assert (
        served.job.post(
            "/api/jobs/j/end", content=body, headers={"Content-Type": "application/json"}
        ).status_code
        == 200
    )
    for path, content in (
        ("windows", '{"windows": [{}]}'),
        ("windows", '{"windows": 1}'),
        ("rules/try", '{"rule": {"name": "r"}, "end": []}'),
    ):
        assert (
            served.operator.post(
                f"/api/{path}", content=content, headers={"Content-Type": "application/json"}
            ).status_code
            == 422
        )


def test_large_bodies_are_refused(served: Served) -> None:
    assert served.job.post("/api/decisions", content=b" " * (2**20 + 1)).status_code == 413
    assert served.job.post("/api/decisions", content=iter([b"{}"])).status_code == 411


VIEWERS = [
    ("GET", path)
    for path in (
        "/api/jobs",
        "/api/rules",
        "/api/alerts",
        "/api/audit",
        "/api/overview",
        "/api/recurring/x",
    )
]
OPERATORS = [
    ("POST", "/api/rules"), ("DELETE", "/api/rules/1"), ("POST", "/api/switch"), ("POST", "/api/windows"), ("POST", "/api/servers/s/drain"),
    ("POST", "/api/alerts/1/close"), ("POST", "/api/recurring/x/mode"), ("POST", "/api/recurring/x/put-back"),
    ("POST", "/api/recurring/x/changes/1/begin"), ("POST", "/api/recurring/x/changes/1/end"), ("POST", "/api/recurring/x/end-change"),
]  # fmt: skip


@pytest.mark.parametrize(("method", "path"), VIEWERS + OPERATORS)
def test_each_role_may_what_it_may(served: Served, method, path) -> None:
    nobody = TestClient(served.app, raise_server_exceptions=False)
    assert nobody.request(method, path, json={}).status_code == 401
    assert served.job.request(method, path, json={}).status_code == 403
    allowed = served.viewer.request(method, path, json={}).status_code
    assert (allowed == 403) is ((method, path) in OPERATORS)
    assert served.operator.request(method, path, json={}).status_code not in (401, 403, 500)


def test_every_path_that_changes_something_needs_a_role(served: Served) -> None:
    """One that is new and forgotten would be open."""
    nobody = TestClient(served.app, raise_server_exceptions=False)
    for path, methods in served.app.openapi()["paths"].items():
        for method in methods:
            if path == "/api/health":
                continue
            told = nobody.request(method, path.replace("{", "").replace("}", ""), json={})
            assert told.status_code in (401, 422), (method, path)


def test_a_proxy_logs_in_and_other_sites_cannot_change_anything(served: Served) -> None:
    browser = TestClient(served.app, headers={"X-User": "olga"})
    assert browser.get("/api/rules").status_code == 200
    change = {"is_on": False}
    assert browser.post("/api/switch", json=change).status_code == 401
    assert (
        browser.post(
            "/api/switch", json=change, headers={"Origin": "http://evil.example"}
        ).status_code
        == 401
    )
    assert (
        browser.post(
            "/api/switch",
            content=b'{"is_on": false}',
            headers={"Origin": "http://testserver", "Content-Type": "text/plain"},
        ).status_code
        == 401
    )
    assert served.coordinator.is_on
    assert (
        browser.post(
            "/api/switch", json=change, headers={"Origin": "http://testserver"}
        ).status_code
        == 200
    )
    viewer = TestClient(served.app, headers={"X-User": "victor", "Origin": "http://testserver"})
    assert viewer.post("/api/switch", json=change).status_code == 403
    elsewhere = TestClient(served.app, headers={"X-User": "olga"}, client=("192.0.2.1", 1))
    assert elsewhere.get("/api/rules").status_code == 401


def test_a_proxys_secret_counts_and_a_user_that_is_named_twice_does_not(served: Served) -> None:
    secret = "0123456789abcdef"
    served.app.state.access = Access(
        {}, proxy_header="X-User", proxies=["testclient"], proxy_secret=secret,
        operators=["olga"], hosts=["TestServer"],
    )  # fmt: skip
    told = []
    proof = ("X-Treadle-Proxy-Secret", secret)
    for headers in (
        [("X-User", "olga")],
        [("X-User", "olga"), ("X-Treadle-Proxy-Secret", "0123456789abcdeX")],
        [("X-User", "olga"), ("X-User", "victor"), proof],
        [("X-User", "olga"), proof, proof],
        [("X-User", "olga"), proof],
    ):
        told.append(TestClient(served.app).get("/api/rules", headers=headers).status_code)
    assert told == [401, 401, 401, 401, 200]


def test_names_of_hosts_are_compared_in_lower_case() -> None:
    assert Access(hosts=["Coordinator.Example"]).allows_host("coordinator.example:7799")
    assert Access(hosts=["coordinator.example"]).allows_host("COORDINATOR.example")


def test_another_hosts_name_is_refused(served: Served) -> None:
    assert served.viewer.get("/api/rules", headers={"Host": "evil.example"}).status_code == 421


def test_tokens_are_in_a_file_that_others_cannot_read(tmp_path: Path) -> None:
    file = tmp_path / "tokens"
    file.write_text("# who\noperator olga 0123456789abcdef\nviewer victor tooshort\n")
    with pytest.raises(ValueError, match="chmod 600"):
        read_tokens(file)
    file.chmod(0o600)
    with pytest.raises(ValueError, match="line 3") as error:
        read_tokens(file)
    assert "tooshort" not in str(error.value)
    file.write_text("operator olga 0123456789abcdef\n")
    access = Access(read_tokens(file))
    who = access.who("POST", {"authorization": "Bearer 0123456789abcdef"}, "", None)
    assert (who.name, who.role) == ("olga", "operator")
    assert access.who("POST", {"authorization": "Bearer 0123456789abcdeX"}, "", None) is None
    assert access.who("POST", {}, "127.0.0.1", None) is None


@of_sqlite
def test_a_locked_database_holds_nobody_up(served: Served, tmp_path: Path) -> None:
    served.rule()
    with sqlite3.connect(tmp_path / "c.db") as other:
        other.execute("BEGIN IMMEDIATE")
        begun = time.monotonic()
        with ThreadPoolExecutor(8) as pool:
            told = list(
                pool.map(
                    lambda n: served.job.post("/api/decisions", json={"id": f"x{n}", "job": JOB}),
                    range(8),
                )
            )
        waited = time.monotonic() - begun
        other.rollback()
    assert {one.status_code for one in told} == {503}
    assert "database" in told[0].json()["detail"]
    assert waited < 2.0 * 2  # each has two seconds; eight of them in turn would have sixteen
    assert served.decide("after")["uses_service"]


@of_sqlite
def test_a_full_database_loses_nothing_that_was_decided(served: Served) -> None:
    served.rule()
    told = served.decide("before")

    def limit(connection) -> None:
        connection.exec_driver_sql("PRAGMA max_page_count=1")

    served.coordinator.database.write_now(limit)
    answers = [
        served.job.post(
            "/api/decisions", json={"id": f"x{n}", "job": {**JOB, "name": f"{n} " + "y" * 300}}
        )
        for n in range(300)
    ]
    assert {one.status_code for one in answers} <= {200, 503}
    assert answers[-1].status_code == 503
    assert "full" in answers[-1].json()["detail"]
    for one in answers:
        if one.status_code == 200:
            assert served.viewer.get(f"/api/decisions/{one.json()['id']}").status_code == 200
    assert served.decide("before") == told


def test_many_decide_at_once(served: Served) -> None:
    served.rule()
    told: list = []

    def ask(thread: int) -> None:
        for n in range(25):
            # Each question comes twice, from different threads.
            told.append(
                served.coordinator.decide({"id": f"{thread // 2}-{n}", "job": JOB}).result(20)["id"]
            )

    threads = [threading.Thread(target=ask, args=(n,)) for n in range(8)]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert len(told) == 200
    page = served.viewer.get("/api/jobs?limit=500").json()
    assert len(page["jobs"]) == 100 == len({one["id"] for one in page["jobs"]})
    hours = served.viewer.get("/api/overview?hours=744")
    assert hours.status_code == 200


def test_pages_of_jobs(served: Served) -> None:
    for n in range(25):
        served.decide(
            f"j{n}", name=f"{'even' if n % 2 == 0 else 'odd'} {n}", user="ann" if n < 20 else "bob"
        )
    found, before = [], None
    while True:
        page = served.viewer.get(
            "/api/jobs", params={"limit": 10, "before": before} if before else {"limit": 10}
        ).json()
        found += [one["id"] for one in page["jobs"]]
        before = page["before"]
        if before is None:
            break
    assert found == [f"j{n}" for n in reversed(range(25))]
    assert len(served.viewer.get("/api/jobs?name=even").json()["jobs"]) == 13
    assert len(served.viewer.get("/api/jobs?user=bob&name=odd").json()["jobs"]) == 2


def test_numbers_and_texts_that_no_column_has_are_refused(served: Served) -> None:
    rule = served.rule()
    served.decide("one")
    many, half = "9" * 30, "\ud800"
    view, change = served.viewer, served.operator

    def post(path: str, body: object, client: TestClient = change) -> int:
        # As escapes: the test's client would not encode halves of characters.
        content = json.dumps(body)
        return client.post(
            path, content=content, headers={"Content-Type": "application/json"}
        ).status_code

    for path in ("/api/jobs", "/api/alerts", "/api/audit"):
        assert view.get(f"{path}?before={many}").status_code == 422
    for path in ("/jobs", "/alerts", "/audit"):
        assert view.get(f"{path}?before={many}").status_code == 200
    assert view.get(f"/rules/{many}").status_code == 404
    assert view.get("/rules/%C2%B2").status_code == 404
    assert view.get("/api/jobs?name=%00").status_code == 422
    assert view.get("/api/decisions/a%00").status_code == 422
    assert view.get(f"/api/rules/{many}/history").status_code == 422
    assert change.delete(f"/api/rules/{many}").status_code == 422
    assert change.post(f"/api/alerts/{many}/close").status_code == 422
    for place in (2**70, 2**31, -1, True, "1"):
        assert post("/api/rules", {"rule": {"name": "r"}, "place": place}) == 422
    for body in ({"id": 2**40}, {half: 1}, {"name": half}):
        assert post("/api/rules", {"rule": {"name": "r", **body}}) == 422
    assert post("/api/rules", {"rule": rule, "note": half}) == 422
    assert post("/api/rules", [half]) == 422
    window = {"begins": 1, "ends": 2, "reason": half}
    assert post("/api/windows", {"windows": [window]}) == 422
    assert view.get("/api/audit").status_code == 200
    deep = served.job.post("/api/decisions", content="[" * 200_000)
    assert deep.status_code == 422
    for values in ({"id": "abc\n"}, {"manager": half}, {"id": "\0"}):
        assert post("/api/decisions", {"job": JOB, **values}, served.job) == 422
    for end in ({"at": 1e15}, {"retries": 2**31}, {"lost_servers": 2**40}):
        assert post("/api/jobs/one/end", end, served.job) == 422
    assert view.get("/api/decisions/one").json()["state"] == "running"


def test_an_id_is_of_one_job(served: Served) -> None:
    served.decide("one")
    told = served.job.post("/api/decisions", json={"id": "one", "job": {**JOB, "name": "another"}})
    assert told.status_code == 422
    assert "another job" in told.json()["detail"]


def test_a_rule_is_written_over_its_present_version(served: Served) -> None:
    first = served.rule(percent=10)
    second = served.rule(**{**first, "percent": 20.0, "begins": 86_400.0, "name": "r"})
    stale = {"rule": {**first, "percent": 90.0}}
    told = served.operator.post("/api/rules", json=stale)
    assert told.status_code == 409
    assert "has version 2 by the operator" in told.json()["detail"]
    assert served.viewer.get("/api/rules").json()["rules"] == [second]
    page = served.operator.get(f"/rules/{first['id']}").text
    assert "percent: 10 → 20.0" in page
    assert "begins: null → 1970-01-02" in page
    assert 'data-method="DELETE"' in page
    assert 'data-method="DELETE"' not in served.viewer.get(f"/rules/{first['id']}").text


@pytest.mark.parametrize(
    ("name", "wrong", "right"),
    [
        (MANAGER, "org.apache.spark.Other", "io.treadle.spark.TreadleShuffleManager"),
        ("spark.sql.shuffle.partitions", "many", "400"),
        ("spark.sql.adaptive.enabled", "yes", "true"),
        ("spark.executor.memory", "4 gigs", "4g"),
        ("spark.sql.autoBroadcastJoinThreshold", "", "-1"),
    ],
)
def test_a_rules_settings_have_values_that_spark_takes(served: Served, name, wrong, right) -> None:
    body = {"rule": {"name": "r", "settings": {name: wrong}}}
    told = served.operator.post("/api/rules", json=body)
    assert told.status_code == 422
    assert name in told.json()["detail"]
    assert served.rule(settings={name: right})["settings"] == {name: right}
