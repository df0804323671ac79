"""Which jobs come onto the service: names, rules, shares, dry runs, admission."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from treadle.coordinator._admission import Forecast, Room, admit, forecast
from treadle.coordinator._allowed import is_allowed
from treadle.coordinator._dry_run import try_rule
from treadle.coordinator._jobs import Job, pattern_of
from treadle.coordinator._rules import Rule, decide, in_share, version_matches

JOB = Job("a", "etl", "ann", "daily report 2026-11-30", "spark", "3.5.9")


@pytest.mark.parametrize(
    ("name", "pattern"),
    [
        ("daily 2026-11-30", "daily *"),
        ("daily 2026-11-30T01:00:00Z", "daily *"),
        ("daily_20261130", "daily_*"),
        ("etl_v2 run 17", "etl_v2 run *"),
        ("etl_v2", "etl_v2"),
        ("app-0f8fad5b-d9cd-469f-a165-70867728950e", "app-*"),
        ("load table_4 to s3", "load table_*" + " to s3"),
        ("query 9f86d081884c7d65", "query *"),
        ("scheduled__2026-11-30T00:00:00+00:00", "scheduled__*"),
        ("deadbeef", "deadbeef"),
        ("", ""),
    ],
)
def test_runs_of_one_job_have_one_pattern(name: str, pattern: str) -> None:
    assert pattern_of(name) == pattern


@given(st.text(alphabet="ab19- _.*:T", max_size=40))
def test_a_pattern_is_its_own_pattern(name: str) -> None:
    assert pattern_of(pattern_of(name)) == pattern_of(name)


@given(st.dates(), st.dates(), st.from_regex(r"[a-z]{1,8}( [a-z]{1,8})?", fullmatch=True))
def test_a_job_of_each_day_is_one_job(one, other, name) -> None:
    assert Job(name=f"{name} {one}").recurring == Job(name=f"{name} {other}").recurring
    assert (
        Job(name=f"{name}_{one:%Y%m%d}").recurring == Job(name=f"{name}_{other:%Y%m%d}").recurring
    )


def test_versions() -> None:
    assert version_matches("3.5.*", "3.5.9")
    assert not version_matches("3.5.*", "3.50")
    assert version_matches(">=3.4,<4.1", "4.0.5")
    assert not version_matches(">=3.4,<4.1", "4.1")
    assert version_matches(">=3.5", "3.5.0")
    assert version_matches("==3.5", "3.5.0-amzn-1")
    assert not version_matches(">=3", "")
    with pytest.raises(ValueError, match="write"):
        version_matches(">=three", "3.5")


@pytest.mark.parametrize(
    ("fields", "takes"),
    [
        ({}, True),
        ({"clusters": ["a", "b"]}, True),
        ({"clusters": ["b"]}, False),
        ({"queues": ["et*"], "users": ["ann"]}, True),
        ({"names": ["daily *"]}, True),
        ({"names": ["weekly *"]}, False),
        ({"engines": ["dask"]}, False),
        ({"versions": ["3.4.*", ">=3.5"]}, True),
        ({"except_users": ["a*"]}, False),
        ({"except_names": ["* report *"]}, False),
        ({"is_on": False}, False),
        ({"begins": 50.0, "ends": 150.0}, True),
        ({"begins": 101.0}, False),
        ({"ends": 100.0}, False),
        ({"percent": 0}, False),
    ],
)
def test_what_a_rule_takes(fields, takes) -> None:
    assert Rule.of({"name": "r", **fields}).takes(JOB, 100.0) is takes


def test_a_refusal_wins_and_the_first_one_that_takes_counts() -> None:
    first, second = Rule("first", users=("ann",), id=1), Rule("second", id=2)
    refuses = Rule("never", "stock", names=("daily *",), id=3)
    assert decide(JOB, [first, second], is_on=True, now=0).rule == first
    assert decide(JOB, [second, first], is_on=True, now=0).rule == second
    refused = decide(JOB, [first, second, refuses], is_on=True, now=0)
    assert not refused.uses_service
    assert refused.reason == "rule 'never' keeps it on stock shuffle"
    assert (
        decide(JOB, [first], is_on=False, now=0).reason
        == "the service is switched off for all jobs"
    )
    assert decide(JOB, [], is_on=True, now=0).reason == "no rule takes it"
    none = decide(JOB, [replace(first, percent=0)], is_on=True, now=0)
    assert none.reason == "it is not among the 0 % that rule 'first' takes"


def test_a_job_whose_version_nobody_says_is_told_so() -> None:
    rule = Rule("new ones", names=("daily *",), versions=(">=3.5", "4.*"))
    told = decide(replace(JOB, version=""), [rule], is_on=True, now=0)
    assert told.reason == (
        "no rule takes it: rule 'new ones' takes versions >=3.5 or 4.*, and whoever asks does not say the version of spark"
    )
    assert (told.uses_service, told.rule) == (False, None)
    # Another version is known, another job is not meant, and one that is off asks for nothing.
    for other, job in (
        (rule, replace(JOB, version="3.3")),
        (rule, replace(JOB, version="", name="weekly")),
        (replace(rule, is_on=False), replace(JOB, version="")),
    ):
        assert decide(job, [other], is_on=True, now=0).reason == "no rule takes it"
    # What another rule takes is taken.
    assert decide(replace(JOB, version=""), [rule, Rule("all")], is_on=True, now=0).uses_service


@given(st.integers(0, 10**6), st.floats(0, 100), st.floats(0, 100))
def test_a_smaller_share_is_part_of_a_larger_one(number, one, other) -> None:
    job = Job(name=f"job-{'x' * (number % 7)}{number}x")
    if in_share(job, 1, min(one, other)):
        assert in_share(job, 1, max(one, other))


def test_a_share_is_as_large_as_it_says_and_stays() -> None:
    letters = str.maketrans("0123456789", "abcdefghij")
    jobs = [Job(name="job " + str(n).translate(letters)) for n in range(4000)]
    taken = [job for job in jobs if in_share(job, 7, 20)]
    # Five standard deviations of a binomial.
    assert abs(len(taken) - 800) < 5 * (4000 * 0.2 * 0.8) ** 0.5
    tomorrow = [Job(name=f"{job.name} 2026-12-01") for job in jobs]
    again = [Job(name=f"{job.name} 2026-12-02") for job in jobs]
    assert [in_share(one, 7, 20) for one in tomorrow] == [in_share(one, 7, 20) for one in again]


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({}, "name"),
        ({"name": "r", "colour": 1}, "colour"),
        ({"name": "r", "action": "maybe"}, "action"),
        ({"name": "r", "users": "ann"}, "users"),
        ({"name": "r", "users": [""]}, "users"),
        ({"name": "r", "percent": float("nan")}, "percent"),
        ({"name": "r", "percent": 101}, "percent"),
        ({"name": "r", "percent": True}, "percent"),
        ({"name": "r", "begins": 2, "ends": 1}, "ends"),
        ({"name": "r", "versions": [">=x"]}, "versions"),
        ({"name": "r", "settings": {"spark.x": 1}}, "settings"),
        ({"name": "r", "settings": {"spark.x": "a\nb"}}, "settings"),
        ({"name": "r", "settings": {"spark.treadle.secret": "s"}}, "file"),
        ({"name": "r", "settings": {"fs.s3a.access.key": "s"}}, "file"),
        ({"name": "r", "is_on": 1}, "is_on"),
    ],
)
def test_a_malformed_rule_is_refused_by_name(values, words) -> None:
    with pytest.raises(ValueError, match=words):
        Rule.of(values)


def test_a_file_with_a_secret_may_be_named() -> None:
    Rule.of({"name": "r", "settings": {"spark.treadle.secretFile": "/etc/treadle/secret"}})


def test_a_rule_is_what_it_was_written_as() -> None:
    rule = Rule.of(
        {"name": "r", "users": ["a"], "percent": 5, "begins": 1.0, "settings": {"spark.x": "1"}}
    )
    assert Rule.of(rule.to_dict()) == rule


def test_a_dry_run_counts_jobs_bytes_and_decisions_that_change() -> None:
    past = [(Job(user="ann", name=f"daily {n}"), 10, 5.0) for n in range(10)]
    past += [(Job(user="bob", name="large"), 900, 5.0), (Job(user="ann", name="old"), 7, 1.0)]
    rule = Rule("r", users=("ann",), begins=2.0, is_on=False)
    found = try_rule(rule, [], past)
    assert (found.jobs, found.bytes, found.taken, found.taken_bytes) == (12, 1007, 10, 100)
    assert found.changed == 10
    assert (
        found.sentence() == "would have taken 10 of 12 jobs, 10 % of the bytes; 10 decisions change"
    )
    # Another rule takes them already, or refuses them.
    assert try_rule(rule, [Rule("all", id=1)], past).changed == 0
    assert try_rule(rule, [Rule("none", "stock", id=1)], past).changed == 0
    # A rule that refuses changes what others take.
    assert try_rule(replace(rule, action="stock"), [Rule("all", id=1)], past).changed == 10
    # A new version is tried in place of the one that is there.
    assert try_rule(replace(rule, id=1, users=("bob",)), [Rule("r", id=1)], past).taken == 1


def test_settings_that_no_rule_may_give() -> None:
    for name in ("spark.shuffle.manager", "spark.treadle.copies", "spark.executor.memory"):
        assert is_allowed(name)
    for name in ("spark.jars", "spark.driver.extraJavaOptions", "spark.treadle", "spark.plugins"):
        assert not is_allowed(name)
        assert is_allowed(name, [name])
    # Whom a job trusts, and whose code it runs, is not for who answers at an address.
    for name in ("insecure", "secretFile", "tls.ca", "implementation", "implementation.sha256"):
        assert not is_allowed(f"spark.treadle.{name}")


GB = 10**9
ROOM = Room(4, 100 * GB, 200 * GB)


def test_a_job_that_fits_is_admitted() -> None:
    assert admit(Forecast(10 * GB, 5), ROOM, 0).copies == 2
    refused = admit(Forecast(41 * GB, 5), ROOM, 0)
    assert refused.copies == 0
    assert refused.reason == "41.0 GB are expected in two copies, and only 80.0 GB are free"
    assert admit(Forecast(41 * GB, 5), ROOM, 0, fewer_copies=True).copies == 1
    # What others were admitted with counts.
    assert admit(Forecast(10 * GB, 5), ROOM, 61 * GB).copies == 0
    assert admit(Forecast(0, 5), Room(0, 0, 0), 0).copies == 0
    assert admit(Forecast(10 * GB, 5), Room(1, 100 * GB, 100 * GB), 0).copies == 1
    assert admit(Forecast(10**15, 5), None, 0).copies == 2


def test_a_job_without_a_history_needs_room() -> None:
    assert admit(Forecast(None, 0), ROOM, 0).copies == 2
    assert admit(Forecast(None, 0), ROOM, 60 * GB).copies == 0


@given(st.integers(0, 2 * 10**12), st.integers(0, 10**12), st.integers(0, 10**12), st.booleans())
def test_what_is_admitted_fits(expected, free, promised, fewer) -> None:
    room = Room(3, free, free + 10**11)
    found = admit(Forecast(expected, 3), room, promised, fewer_copies=fewer)
    assert found.copies * expected <= max(0, free - promised)
    more = admit(Forecast(expected, 3), room, promised + 10**9, fewer_copies=fewer)
    assert more.copies <= found.copies


def test_the_forecast_is_above_most_runs() -> None:
    assert forecast([]).bytes is None
    assert forecast([100] * 30).bytes == 120
    # One run of twenty was an outlier.
    assert forecast([100] * 19 + [10**6]).bytes in (120, 1_200_000)
    assert forecast([10**6] * 30 + [100] * 20).bytes == 120


def test_what_was_pushed_is_promised_no_more() -> None:
    # A job of 40 GB, twice, has pushed all of it: the servers say so, and it is still among those that run.
    room = Room(4, 120 * GB, 200 * GB, 80 * GB)
    assert admit(Forecast(50 * GB, 5), room, 80 * GB).copies == 2
    assert admit(Forecast(None, 0), room, 80 * GB).copies == 2
    # Half of it is still to come; and rows of jobs that nobody promised anything are no room.
    assert admit(Forecast(50 * GB, 5), room, 120 * GB).copies == 0
    assert admit(Forecast(51 * GB, 5), room, 0).copies == 0
