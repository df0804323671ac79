"""Event logs of real Spark: all forms of files, what they tell, and the causes that are found in them."""

from __future__ import annotations

import gzip
import json
import os
import random
from pathlib import Path

import dask
import lz4.block
import pyarrow
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from planted import LOGS, RECORDED, healthy, later, lines_of, planted
from treadle.cli._spark_submit import _job
from treadle.coordinator import _event_files, _store
from treadle.coordinator._database import Busy
from treadle.coordinator._diagnosis import GROUP, Finding, diagnose, rules
from treadle.coordinator._event_files import logs_in, read_log
from treadle.coordinator._event_log import read_application
from treadle.coordinator._jobs import Job, pattern_of, with_place
from treadle.coordinator._measures import Application
from treadle.coordinator._polling import LogFolders
from treadle.coordinator._rules import Rule
from treadle.coordinator._service import Coordinator
from treadle.coordinator._spark_submit import parse

# Milliseconds since 1970, in 2026.
MOMENT = 1_780_000_000_000
START = {"Event": "SparkListenerApplicationStart", "App Name": "a", "App ID": "app-1", "Timestamp": MOMENT}  # fmt: skip


def text_of(name: str) -> str:
    return "\n".join(lines_of(name)) + "\n"


def lz4_blocks(data: bytes, size: int = 32768) -> bytes:
    """What lz4-java's LZ4BlockOutputStream writes."""
    found = b""
    for at in range(0, len(data), size):
        part = data[at : at + size]
        packed = lz4.block.compress(part, store_size=False)
        is_raw = len(packed) >= len(part)
        body = part if is_raw else packed
        token = (0x10 if is_raw else 0x20) | 5
        lengths = len(body).to_bytes(4, "little") + len(part).to_bytes(4, "little")
        found += b"LZ4Block" + bytes([token]) + lengths + b"\0\0\0\0" + body
    return found + b"LZ4Block" + bytes([0x15]) + b"\0" * 12


def snappy_blocks(data: bytes, size: int = 32768) -> bytes:
    """What snappy-java's SnappyOutputStream writes."""
    found = b"\x82SNAPPY\0" + bytes([0, 0, 0, 1, 0, 0, 0, 1])
    for at in range(0, len(data), size):
        packed = pyarrow.compress(data[at : at + size], codec="snappy", asbytes=True)
        found += len(packed).to_bytes(4, "big") + packed
    return found


def zstd_frames(data: bytes, size: int = 8192) -> bytes:
    """What Spark writes while it runs: a frame ends at each flush."""
    return b"".join(zstandard.compress(data[at : at + size]) for at in range(0, len(data), size))


def same(one: Application, other: Application) -> bool:
    return one.to_dict() == other.to_dict()


def test_what_a_log_tells() -> None:
    app = read_log(LOGS / "tiny-splits.zstd")
    assert (app.name, app.version, app.cores, app.failed, app.skipped_lines) == (
        "tiny-splits 2026-11-30", "3.5.9", 2, False, 0,
    )  # fmt: skip
    assert app.job().pattern == "tiny-splits *"
    assert app.settings["spark.sql.files.maxPartitionBytes"] == "65536"
    scan = app.stages[2]
    assert (scan.tasks, scan.input_bytes, scan.shuffle_written, scan.reads_files) == (
        123,
        9245859,
        11706,
        True,
    )
    assert scan.task_run.median <= scan.task_run.p95 <= scan.task_run.largest
    end = app.end()
    assert end is not None
    assert end.shuffle_bytes == 11706
    assert 30 < end.duration < 40
    assert same(Application.of(json.loads(json.dumps(app.to_dict()))), app)


@pytest.mark.parametrize("form", ["plain", "gz", "zst", "lz4", "snappy", "rolling"])
def test_all_forms_of_files(tmp_path: Path, form: str) -> None:
    data = text_of("skew").encode()
    path = tmp_path / f"app-1{'' if form in ('plain', 'rolling') else '.' + form}"
    if form == "rolling":
        path = tmp_path / "eventlog_v2_app-1"
        path.mkdir()
        (path / "appstatus_app-1").touch()
        lines = data.splitlines(keepends=True)
        # Twelve parts: the tenth comes after the ninth.
        for part in range(12):
            some = lines[part * len(lines) // 12 : (part + 1) * len(lines) // 12]
            (path / f"events_{part + 1}_app-1.lz4").write_bytes(lz4_blocks(b"".join(some), 1000))
    else:
        pack = {
            "gz": gzip.compress,
            "zst": zstd_frames,
            "lz4": lz4_blocks,
            "plain": bytes,
            "snappy": snappy_blocks,
        }
        path.write_bytes(pack[form](data))
    assert same(read_log(path), read_log(LOGS / "skew.zstd"))
    assert [found for found, _ in logs_in(tmp_path)] == [path]


@pytest.mark.parametrize("form", ["", ".gz", ".zstd", ".lz4", ".snappy"])
def test_a_log_that_is_still_written(tmp_path: Path, form: str) -> None:
    data = text_of("skew").encode()
    pack = {
        "": bytes,
        ".gz": gzip.compress,
        ".zstd": zstd_frames,
        ".lz4": lz4_blocks,
        ".snappy": snappy_blocks,
    }[form]
    whole = pack(data)
    path = tmp_path / f"app-1{form}.inprogress"
    path.write_bytes(whole[: len(whole) * 9 // 10])
    app = read_log(path)
    assert app.ended is None
    assert app.end() is None
    assert app.name == "skew 2026-11-30"
    assert sum(stage.tasks for stage in app.stages) > 0


def test_an_unknown_compression_is_named(tmp_path: Path) -> None:
    (tmp_path / "app.lzf").write_bytes(b"x")
    with pytest.raises(ValueError, match="lzf"):
        read_log(tmp_path / "app.lzf")
    with pytest.raises(ValueError, match="no event log"):
        read_application([b"hello", b"{}"])


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_damaged_lines_are_skipped(data) -> None:
    lines = text_of("retries").splitlines()
    # Without the line that names the application, there is none.
    others = [at for at, line in enumerate(lines) if "ApplicationStart" not in line]
    for _ in range(5):
        at = data.draw(st.sampled_from(others))
        cut = data.draw(st.integers(0, len(lines[at])))
        lines[at] = lines[at][:cut] + data.draw(st.text(max_size=5)) + lines[at][cut + 1 :]
    app = read_application(lines)
    assert app.name
    diagnose(app)


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
        lambda inner: (
            st.lists(inner, max_size=3)
            | st.dictionaries(
                st.sampled_from(
                    ["Stage ID", "Stage Info", "Task Metrics", "Timestamp", "App Name"]
                ),
                inner,
                max_size=4,
            )
        ),
        max_leaves=8,
    )
)
@settings(max_examples=60, deadline=None)
def test_values_of_any_type_are_skipped(value) -> None:
    start = {"Event": "SparkListenerApplicationStart", "App Name": "a", "Timestamp": MOMENT}
    events = [start]
    for name in (
        "TaskEnd",
        "StageSubmitted",
        "StageCompleted",
        "JobEnd",
        "ExecutorAdded",
        "EnvironmentUpdate",
        "ApplicationEnd",
    ):
        body = value if isinstance(value, dict) else {"Stage Info": value, "Timestamp": value}
        events.append({**body, "Event": f"SparkListener{name}"})
    assert read_application(map(json.dumps, events)).name == "a"


def test_secrets_of_a_log_are_not_kept() -> None:
    settings = {
        "spark.app.name": "x",
        "spark.hadoop.fs.s3a.secret.key": "s3cr3t",
        "spark.sql.shuffle.partitions": "7",
    }
    events = [
        {
            "Event": "SparkListenerApplicationStart",
            "App Name": "x",
            "App ID": "a",
            "Timestamp": MOMENT,
        },
        {
            "Event": "SparkListenerEnvironmentUpdate",
            "Spark Properties": settings,
            "System Properties": {"k": "s3cr3t"},
        },
    ]
    app = read_application(map(json.dumps, events))
    assert "s3cr3t" not in json.dumps(app.to_dict())
    assert app.settings["spark.sql.shuffle.partitions"] == "7"


def test_a_stage_of_many_tasks_takes_bounded_memory() -> None:
    lines = text_of("healthy").splitlines()
    task = next(json.loads(line) for line in lines if '"SparkListenerTaskEnd"' in line)
    rng = random.Random(1)

    def events():
        yield from lines
        for _ in range(12_000):
            task["Stage ID"] = 77
            task["Task Metrics"]["Executor Run Time"] = rng.randrange(1000)
            yield json.dumps(task)

    stage = next(one for one in read_application(events()).stages if one.number == 77)
    assert stage.tasks == 12_000
    assert 450 < stage.task_run.median * 1000 < 550
    assert 930 < stage.task_run.p95 * 1000 < 970
    assert stage.task_run.largest == 0.999


def varied(name: str, number: int) -> Application:
    """A log as if the cluster had been faster or slower, and its tasks of other lengths: by up to 25 %."""
    rng = random.Random(f"{name} {number}")
    speed = rng.uniform(0.75, 1.25)
    lines = []
    start = None
    for line in text_of(name).splitlines():
        event = json.loads(line)
        if event["Event"] == "SparkListenerApplicationStart":
            start = event["Timestamp"]
        if event["Event"] == "SparkListenerTaskEnd" and event.get("Task Metrics"):
            factor = rng.uniform(0.85, 1.15) * speed
            for key in ("Executor Run Time", "JVM GC Time"):
                event["Task Metrics"][key] = round(event["Task Metrics"][key] * factor)
            event["Task Metrics"]["Executor CPU Time"] = round(
                event["Task Metrics"]["Executor CPU Time"] * factor
            )
        lines.append(json.dumps(later(event, start, speed)))
    return read_application(lines)


# One of each cause; bench/coordinator/rules.py counts all of them.
FEW = list(planted(1))


@pytest.mark.parametrize(("cause", "rule", "follows", "app"), FEW, ids=[one[0] for one in FEW])
def test_a_planted_cause_is_named(cause: str, rule: str, follows: set[str], app) -> None:
    apps = [app]
    if cause in RECORDED:
        apps += [varied(cause, n) for n in range(3)]
    for one in apps:
        found = {finding.rule for finding in diagnose(one)}
        assert rule in found
        assert found <= {rule} | follows


def test_healthy_jobs_get_no_finding() -> None:
    apps = [(f"varied {n}", varied("healthy", n)) for n in range(10)]
    for name, app in [*healthy(), *apps]:
        assert (name, diagnose(app)) == (name, [])


def test_a_rule_that_fails_is_left_out() -> None:
    class Fails:
        name = "fails"

        def look(self, app: Application) -> Finding | None:
            raise ZeroDivisionError

    class Finds:
        name = "finds"

        def look(self, app: Application) -> Finding | None:
            return Finding("finds", "e", "x", 1.0)

    assert [one.rule for one in diagnose(Application(), [Fails(), Finds()])] == ["finds"]


def test_other_packages_add_rules(tmp_path: Path, monkeypatch) -> None:
    """One that cannot be imported is left out."""
    (tmp_path / "our_rules.py").write_text(
        "from treadle.coordinator._diagnosis import Finding\n"
        "class Named:\n"
        "    name = 'ours'\n"
        "    def look(self, app):\n"
        "        return Finding('ours', 'seen', 'better', 0.5)\n"
    )
    folder = tmp_path / "our_rules-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: our-rules\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(
        f"[{GROUP}]\nours = our_rules:Named\ngone = no_such_module:X\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    rules.cache_clear()
    try:
        assert [one.rule for one in diagnose(read_log(LOGS / "healthy.zstd"))] == ["ours"]
    finally:
        rules.cache_clear()


def test_rules_of_other_packages_have_parameters(tmp_path: Path, monkeypatch, caplog) -> None:
    (tmp_path / "their_rules.py").write_text(
        "from treadle.coordinator._diagnosis import Finding\n"
        "class Limited:\n"
        "    name = 'limited'\n"
        "    def __init__(self, most_stages=1000):\n"
        "        self.most_stages = most_stages\n"
        "    def look(self, app):\n"
        "        return Finding('limited', f'more than {self.most_stages}', 'fewer', 0.5)\n"
    )
    folder = tmp_path / "their_rules-1.dist-info"
    folder.mkdir()
    (folder / "METADATA").write_text("Metadata-Version: 2.1\nName: their-rules\nVersion: 1\n")
    (folder / "entry_points.txt").write_text(f"[{GROUP}]\nour-limit = their_rules:Limited\n")
    monkeypatch.syspath_prepend(tmp_path)

    def found(told: object) -> list[str]:
        rules.cache_clear()
        with dask.config.set({"treadle.coordinator.rules": told}):
            rules()
        return [one.evidence for one in diagnose(read_log(LOGS / "healthy.zstd"))]

    try:
        assert found(None) == ["more than 1000"]
        assert found({"our-limit": {"most-stages": 7}}) == ["more than 7"]
        # As those of the environment are.
        assert found({"our_limit": {"most_stages": 8}, "gone": {"x": 1}}) == ["more than 8"]
        assert "treadle.coordinator.rules has gone" in caplog.text
        # It does not take that one: it is left out, and the log says so.
        assert found({"our-limit": {"colour": 1}}) == []
        assert "rule our-limit cannot be made with {'colour': 1}" in caplog.text
        with pytest.raises(ValueError, match="a table of parameters for each name"):
            found({"our-limit": 7})
    finally:
        rules.cache_clear()


def test_a_folder_of_logs_becomes_jobs_with_measures(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    coordinator = Coordinator(f"sqlite:///{tmp_path}/c.db")
    try:
        lines = text_of("skew").splitlines(keepends=True)
        log = folder / "app-1.inprogress"
        log.write_text("".join(lines[:-3]))
        folders = LogFolders([folder], coordinator)
        folders.look()
        identity = read_application(lines).id
        job = coordinator.database.read(lambda c: _store.job_of(c, identity))
        assert (job["state"], job["verdict"]) == ("running", "unasked")
        log.write_text("".join(lines))
        log.rename(folder / "app-1")
        folders.look()
        folders.look()
        job = coordinator.database.read(lambda c: _store.job_of(c, identity))
        assert (job["state"], job["shuffle_bytes"]) == ("finished", 206946683)
        body = coordinator.database.read(lambda c: _store.measures_of(c, identity))
        assert [one["rule"] for one in body["findings"]] == ["skew"]
        assert same(Application.of(body["application"]), read_application(lines))
    finally:
        coordinator.close()


def test_one_bad_entry_keeps_no_other_log_from_being_read(tmp_path: Path, monkeypatch) -> None:
    folder = tmp_path / "logs"
    folder.mkdir()
    data = text_of("skew").encode()
    (folder / "a-dangling").symlink_to(tmp_path / "gone")
    packed = bytearray(gzip.compress(data))
    packed[40:400] = bytes(360)
    (folder / "b-damaged.gz").write_bytes(packed)
    infinite = json.dumps(START).replace(str(MOMENT), "Infinity")
    (folder / "c-infinite").write_text(infinite)
    huge = {"Event": "SparkListenerApplicationEnd", "Timestamp": 10**30}
    (folder / "c-never").write_text(f"{json.dumps(START)}\n{json.dumps(huge)}")
    os.mkfifo(folder / "d-pipe")
    rolling = folder / "eventlog_v2_e"
    rolling.mkdir()
    os.mkfifo(rolling / "events_1_e")
    bomb = zstandard.compress(bytes(3_000_000))
    (folder / "f-bomb.zstd").write_bytes(bomb)
    lines = zstandard.compress(b"{}\n" * 3_000_000)
    (folder / "g-endless.zstd").write_bytes(lines)
    (folder / "z-good").write_bytes(data)
    monkeypatch.setattr(_event_files, "_LONGEST_LINE", 1_000_000)
    monkeypatch.setattr(_event_files, "_MOST_BYTES", 6_000_000)
    coordinator = Coordinator(f"sqlite:///{tmp_path}/c.db")
    try:
        LogFolders([tmp_path / "nowhere", folder], coordinator).look()
        assert _row(coordinator, read_application(data.splitlines()).id)["state"] == "finished"
        # A time that cannot be is none: the application has no end yet.
        assert _row(coordinator, "app-1")["state"] == "running"
        for name, words in (("f-bomb.zstd", "a line of"), ("g-endless.zstd", "more than")):
            with pytest.raises(ValueError, match=words):
                read_log(folder / name)
    finally:
        coordinator.close()


def test_a_busy_database_loses_no_log(tmp_path: Path) -> None:
    class Full:
        seen = 0

        def observed(self, _application: Application) -> None:
            self.seen += 1
            raise Busy("later")

    (tmp_path / "app").write_text(text_of("skew"))
    coordinator = Full()
    folders = LogFolders([tmp_path], coordinator)
    folders.look()
    folders.look()
    assert coordinator.seen == 2


@pytest.mark.parametrize(
    ("message", "failed"), [("", False), ("RuntimeError: no", True), (None, False)]
)
def test_a_query_that_fails_in_the_driver_is_a_failure(message, failed) -> None:
    events = [
        START,
        {"Event": "SparkListenerJobEnd", "Completion Time": MOMENT, "Job Result": {"Result": "JobSucceeded"}},
        {"Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd", "time": MOMENT, "errorMessage": message},
        {"Event": "SparkListenerApplicationEnd", "Timestamp": MOMENT + 1000},
    ]  # fmt: skip
    app = read_application(map(json.dumps, events))
    assert (app.failed, app.skipped_lines) == (failed, 0)
    assert app.error == (message or "")


@pytest.mark.parametrize(
    ("name", "text", "number"),
    [
        ("spark.executor.memory", "4096", 2**32), ("spark.executor.memory", "4g", 2**32),
        ("spark.sql.files.maxPartitionBytes", "4096", 4096), ("spark.sql.files.maxPartitionBytes", "4kb", 4096),
        ("spark.sql.shuffle.partitions", "200", 200), ("spark.executor.memory", "much", 7),
    ],
)  # fmt: skip
def test_a_number_without_a_unit_has_the_settings_own(name, text, number) -> None:
    assert Application(settings={name: text}).number(name, 7) == number


def test_a_job_with_the_reports_disease_is_tuned_by_itself(tmp_path: Path) -> None:
    """Decisions, ends and measures go through the coordinator; only Spark's runs are simulated, from a real log."""
    coordinator = Coordinator(f"sqlite:///{tmp_path}/c.db")
    name = "spark.sql.files.maxPartitionBytes"
    sick = read_log(LOGS / "tiny-splits.zstd")
    rng = random.Random(5)
    try:
        job = {"name": "daily 2026-11-30", "user": "ann"}
        states = []
        for n in range(30):
            told = coordinator.decide({"id": f"r{n}", "job": job, "tunable": [name]}).result(10)
            if n == 1:
                row_key = _row(coordinator, "r0")["recurring"]
                coordinator.set_mode(row_key, "apply", "olga")
            helped = told["settings"].get(name) not in (None, "65536b")
            from treadle.coordinator._watching import End

            coordinator.ended(
                f"r{n}", End(duration=(60 if helped else 120) * rng.uniform(0.95, 1.05))
            ).result(10)
            coordinator.measured(f"r{n}", sick).result(10)
            states.append(told["settings"].get(name))
        first = next(n for n, value in enumerate(states) if value)
        assert first <= 9
        # It stays as soon as it is kept.
        assert set(states[first + 4 :]) <= {states[-1]}
        assert states[-1] is not None
        story = coordinator.database.read(lambda c: _tuning(c, row_key))
        change = story.changes[0]
        assert (change.rule, change.parameter, change.state) == ("small splits", name, "kept")
        assert 0.45 < change.ratio < 0.55
        # What its rule expects stands beside what was measured.
        assert (
            change.expected
            == "rows are combined over more of the input, so that fewer bytes are shuffled"
        )
        assert 0 < change.concerns <= 1
    finally:
        coordinator.close()


def _row(coordinator, identity):
    from treadle.coordinator import _store

    return coordinator.database.read(lambda c: _store.job_of(c, identity))


def _tuning(connection, key):
    from treadle.coordinator import _store

    return _store.recurring_of(connection, key)[1]


def test_a_restart_takes_no_log_again(tmp_path: Path) -> None:
    """Neither those in the database nor those that it has forgotten; and nobody is told of what is long ago."""
    day = 24 * 3600.0
    folder = tmp_path / "logs"
    folder.mkdir()
    for number in range(12):
        # A day between them; the last one takes far longer.
        begin = MOMENT + number * 86_400_000
        length = 900_000 if number == 11 else 60_000
        lines = [
            {**START, "App ID": f"app-{number:02}", "Timestamp": begin},
            {"Event": "SparkListenerApplicationEnd", "Timestamp": begin + length},
        ]
        (folder / f"app-{number:02}").write_text("\n".join(map(json.dumps, lines)))
    last, told = MOMENT / 1e3 + 11 * day, []
    url = f"sqlite:///{tmp_path}/c.db"

    def started(now: float, keep_days: float) -> tuple[int, int, int]:
        coordinator = Coordinator(url, clock=lambda: now, notify=told.extend)
        try:
            LogFolders([folder], coordinator, keep_days, lambda: now).look()
            coordinator.forget(keep_days)

            def read(connection) -> tuple[int, int, int]:
                (story,) = _store.recurring_page(connection, 9)
                shown = _store.alerts_page(connection, only_open=True, before=None, limit=99)
                return story["runs"], len(story["history"]["runs"]), len(shown)

            return coordinator.database.read(read)
        finally:
            coordinator.close()

    assert started(last + 30 * day, 90) == (12, 12, 1)
    assert told == []
    for _ in range(2):
        # Most rows are forgotten now, and what is remembered of them is not.
        assert started(last + 30 * day, 33)[:2] == (12, 12)
    assert told == []


@pytest.mark.parametrize(
    ("error", "cause"),
    [
        ("io.treadle.spark.service.ServiceException: no server takes rows", "service"),
        ("io.treadle.spark.service.ServiceException$TimedOut: 60 s", "service"),
        ("org.apache.spark.shuffle.FetchFailedException: gone", "service"),
        ("io.treadle.spark.service.ServiceException$Interrupted: the task was ended", "job"),
        ("ValueError\n\tat io.treadle.spark.service.ServiceWriter.write", "job"),
    ],
)
@pytest.mark.parametrize("told_by", ["job", "query"])
def test_a_failure_of_the_service_while_it_writes_is_its_own(error, cause, told_by) -> None:
    # Stack traces are longer than the error that is kept.
    text = "Job aborted due to stage failure: " + 3000 * "x" + error
    failure = {
        "job": {
            "Event": "SparkListenerJobEnd", "Completion Time": MOMENT,
            "Job Result": {"Result": "JobFailed", "Exception": {"Message": text}},
        },
        "query": {
            "Event": "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd", "time": MOMENT,
            "errorMessage": text,
        },
    }[told_by]  # fmt: skip
    manager = {"spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager"}
    events = [
        START, {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": manager}, failure,
        {"Event": "SparkListenerApplicationEnd", "Timestamp": MOMENT + 1000},
    ]  # fmt: skip
    end = read_application(map(json.dumps, events)).end()
    assert end is not None
    assert (end.failed, end.cause) == (True, cause)


LOST = (
    "Job aborted: org.apache.spark.shuffle.MetadataFetchFailedException: Missing an output location"
)
OWN = "Job aborted due to stage failure: ZeroDivisionError: division by zero"


def job_start(number: int, query: str | None = None) -> dict:
    properties = {} if query is None else {"spark.sql.execution.id": query}
    return {"Event": "SparkListenerJobStart", "Job ID": number, "Properties": properties}


def job_end(number: int, error: str = "") -> dict:
    result = {"Result": "JobFailed", "Exception": {"Message": error}} if error else {"Result": "JobSucceeded"}  # fmt: skip
    return {"Event": "SparkListenerJobEnd", "Job ID": number, "Completion Time": MOMENT, "Job Result": result}  # fmt: skip


def query_end(number: int, error: str) -> dict:
    name = "org.apache.spark.sql.execution.ui.SparkListenerSQLExecutionEnd"
    return {"Event": name, "executionId": number, "time": MOMENT, "errorMessage": error}


# A stage that is made again, as its rows could not be fetched.
FETCH = {
    "Event": "SparkListenerStageCompleted",
    "Stage Info": {"Stage ID": 1, "Failure Reason": "org.apache.spark.shuffle.FetchFailedException: gone"},
}  # fmt: skip


@pytest.mark.parametrize(
    ("events", "cause"),
    [
        # Rows were made again, and then the user's code fails: in a job, in a query, after a job that was lost.
        ([FETCH, job_end(1), job_end(2, OWN)], "job"),
        ([FETCH, job_start(1, "4"), job_end(1), query_end(4, "ValueError: no")], "job"),
        ([job_start(1), job_end(1, LOST), job_start(2), job_end(2, OWN)], "job"),
        ([job_start(1, "4"), job_end(1, LOST), query_end(4, LOST), query_end(5, OWN)], "job"),
        ([job_end(1, OWN), job_end(2, LOST)], "service"),
        # The query that the service fails ends its other jobs, and need not say why it fails itself.
        ([job_start(1, "4"), job_start(2, "4"), job_end(1, LOST), job_end(2, "Job 2 cancelled")], "service"),
        ([job_start(1, "4"), job_end(1, LOST), query_end(4, "Job aborted.")], "service"),
        # Other jobs still run when the driver ends because of it.
        ([job_end(1, LOST), job_end(2, "Job 2 cancelled because SparkContext was shut down")], "service"),
        ([job_end(1, LOST), job_end(2)], ""),
        ([FETCH, job_end(1)], ""),
    ],
)  # fmt: skip
def test_only_the_failure_that_ended_a_job_says_whose_it_was(events, cause) -> None:
    manager = {"spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager"}
    environment = {"Event": "SparkListenerEnvironmentUpdate", "Spark Properties": manager}
    last = {"Event": "SparkListenerApplicationEnd", "Timestamp": MOMENT + 1000}
    app = read_application(map(json.dumps, [START, environment, *events, last]))
    end = app.end()
    assert end is not None
    assert (end.failed, end.cause, app.skipped_lines) == (bool(cause), cause, 0)


SUBMIT = "org.apache.spark.deploy.SparkSubmit"


@pytest.mark.parametrize(
    ("arguments", "properties", "code_name"),
    [
        (["--queue", "etl", "/jobs/daily.py", "2026-11-30"], {"spark.yarn.queue": "etl"}, "from code"),
        (["--class", "a.Daily", "--conf", "a=b", "x.jar"], {}, "from code"),
        (["--name", "daily", "x.py"], {}, "from code"),
        (["--name", "daily 2026-11-30", "x.py"], {}, "daily 2026-11-30"),
        (["--conf", "spark.kubernetes.namespace=etl", "local:///daily.py"], {"spark.kubernetes.namespace": "etl"}, "n"),
    ],
)  # fmt: skip
def test_a_job_is_the_same_one_before_the_coordinator_is_asked_and_then(
    tmp_path: Path, monkeypatch, arguments, properties, code_name
) -> None:
    """Its history from logs counts when it is asked about, and a rule that is tried finds it."""
    monkeypatch.setenv("HADOOP_USER_NAME", "ann")
    monkeypatch.delenv("SPARK_HOME", raising=False)
    submission = parse(arguments)
    asked = Job.of(_job(submission, submission.given(None, None), "a", "default"))
    folder, place = with_place(f"{tmp_path}#cluster=a&queue=default")
    assert folder == str(tmp_path)

    def write(name: str, more: dict) -> None:
        environment = {
            "Event": "SparkListenerEnvironmentUpdate", "Spark Properties": {**properties, **more},
            "System Properties": {"sun.java.command": f"{SUBMIT} {' '.join(arguments)}"},
        }  # fmt: skip
        start = {**START, "App ID": name, "App Name": code_name, "User": "ann"}
        end = {"Event": "SparkListenerApplicationEnd", "Timestamp": MOMENT + 1000}
        (tmp_path / name).write_text("\n".join(map(json.dumps, (start, environment, end))))

    write("before", {})
    told = {
        f"spark.treadle.{field}": getattr(asked, field) for field in ("name", "cluster", "queue")
    }
    write("after", told)
    coordinator = Coordinator(f"sqlite:///{tmp_path / 'db'}", clock=lambda: MOMENT / 1e3 + 60)
    try:
        LogFolders([tmp_path], coordinator, places={tmp_path: place}).look()
        coordinator.decide({"job": asked.to_dict()}).result(10)
        (story,) = coordinator.database.read(lambda c: _store.recurring_page(c, 9))
        assert (story["key"], story["runs"]) == (asked.recurring, 3)
        rule = Rule("r", names=(pattern_of(asked.name),), queues=(asked.queue,), clusters=("a",))
        tried = coordinator.try_rule(rule, MOMENT / 1e3 - 1, MOMENT / 1e3 + 1).to_dict()
        assert tried["taken"] == 2
    finally:
        coordinator.close()


@pytest.mark.parametrize("master", ["k8s://https://a", "yarn"])
def test_a_name_of_a_file_of_settings_is_that_of_the_application(tmp_path: Path, master) -> None:
    """Kubernetes' drivers are started with such a file, which has what was ``--name``."""
    file = tmp_path / "spark.properties"
    file.write_text("spark.app.name daily\n")
    arguments = ["--properties-file", str(file), "--class", "a.Daily", "x.jar"]
    submission = parse(["--master", master, *arguments])
    asked = Job.of(_job(submission, submission.given(None, None), "a", ""))
    environment = {
        "Event": "SparkListenerEnvironmentUpdate", "Spark Properties": {"spark.app.name": "daily"},
        "System Properties": {"sun.java.command": f"{SUBMIT} {' '.join(arguments)}"},
    }  # fmt: skip
    application = read_application(map(json.dumps, ({**START, "App Name": "daily"}, environment)))
    assert application.name == asked.name == "daily"


def test_a_program_that_starts_spark_itself_has_its_own_name() -> None:
    command = f"{SUBMIT} --conf spark.app.name=mine pyspark-shell"
    environment = {
        "Event": "SparkListenerEnvironmentUpdate", "Spark Properties": {},
        "System Properties": {"sun.java.command": command},
    }  # fmt: skip
    assert read_application(map(json.dumps, [START, environment])).name == "a"
