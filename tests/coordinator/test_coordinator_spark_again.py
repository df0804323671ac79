"""``treadle spark-submit`` runs a job again that the shuffle service failed, and is else as if it were spark-submit."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from waiting import SOON, until

OURS = ("--conf", "spark.shuffle.manager=io.treadle.spark.TreadleShuffleManager")
# It notes each run, and does what its last argument says.
PROGRAM = """
import json, os, signal, sys, time
from pathlib import Path

def note(**what):
    with open(os.environ["NOTES"], "a") as file:
        file.write(json.dumps(what) + "\\n")

attempt, file = (os.environ.get(f"TREADLE_SPARK_{name}") for name in ("ATTEMPT", "FAILURE"))
signal.signal(signal.SIGTERM, lambda *_: (note(came="SIGTERM"), sys.exit(143)))
note(attempt=attempt, arguments=sys.argv[1:], pid=os.getpid(), ignores=signal.getsignal(signal.SIGHUP) == signal.SIG_IGN)
what, code = sys.argv[-1].split("-")
if attempt == "1" and what in ("service", "waits"):
    Path(file).write_text("three servers are gone")
if what == "waits":
    time.sleep(100)
if what == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
sys.exit(0 if what == "service" and attempt == "2" else int(code))
"""


@pytest.fixture
def begin(tmp_path: Path) -> Callable[..., subprocess.Popen[str]]:
    program = tmp_path / "spark" / "bin" / "spark-submit"
    program.parent.mkdir(parents=True)
    program.write_text(f"#!{sys.executable}\n{PROGRAM}")
    program.chmod(0o755)
    environment = {
        **os.environ,
        "SPARK_HOME": str(tmp_path / "spark"),
        "NOTES": str(tmp_path / "notes"),
    }
    environment.pop("DASK_TREADLE__COORDINATOR__URL", None)

    def begin(*arguments: str, **options: Any) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "treadle", "spark-submit", *arguments]
        return subprocess.Popen(
            command, env=environment, stderr=subprocess.PIPE, text=True, **options
        )

    return begin


@pytest.fixture
def noted(tmp_path: Path) -> Callable[[], list[dict[str, Any]]]:
    def noted() -> list[dict[str, Any]]:
        file = tmp_path / "notes"
        return [json.loads(line) for line in file.read_text().splitlines()] if file.exists() else []

    return noted


def test_a_job_that_the_service_failed_runs_again_once_without_it(begin, noted, tmp_path) -> None:
    process = begin(*OURS, "app.py", "service-3")
    assert (
        "submitted again without it: three servers are gone" in process.communicate(timeout=SOON)[1]
    )
    assert process.returncode == 0
    first, second = noted()
    assert (first["attempt"], second["attempt"]) == ("1", "2")
    assert first["arguments"] == second["arguments"] == [*OURS, "app.py", "service-3"]


@pytest.mark.parametrize(
    ("arguments", "code", "attempt"),
    [
        ([*OURS, "app.py", "fails-3"], 3, "1"),
        ([*OURS, "app.py", "fails-0"], 0, "1"),
        ([*OURS, "app.py", "killed-0"], 128 + signal.SIGKILL, "1"),
        # It is replaced by spark-submit.
        (["app.py", "service-3"], 3, None),
        ([*OURS, "--conf", "spark.treadle.attempts=1", "app.py", "service-3"], 3, None),
        ([*OURS, "--deploy-mode", "cluster", "app.py", "service-3"], 3, None),
        ([*OURS, "--conf", "spark.submit.deployMode=cluster", "app.py", "service-3"], 3, None),
    ],
)
def test_others_run_once(begin, noted, arguments, code, attempt) -> None:
    process = begin(*arguments)
    process.communicate(timeout=SOON)
    assert process.returncode == code
    (one,) = noted()
    assert one["attempt"] == attempt
    assert (one["pid"] == process.pid) == (attempt is None)


def test_a_job_that_somebody_ends_does_not_run_again(begin, noted) -> None:
    process = begin(*OURS, "app.py", "waits-3")
    until(noted)
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=SOON)
    assert process.returncode == 143
    assert [one.get("came") for one in noted()] == [None, "SIGTERM"]


def test_a_job_ends_with_who_has_submitted_it(begin, noted) -> None:
    process = begin(*OURS, "app.py", "waits-3")
    until(noted)
    process.kill()
    process.communicate(timeout=SOON)
    until(lambda: noted()[-1].get("came") == "SIGTERM")


def test_what_is_ignored_stays_ignored(begin, noted) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGHUP, signal.SIG_IGN)

    process = begin(*OURS, "app.py", "fails-0", preexec_fn=ignore)
    process.communicate(timeout=SOON)
    assert noted()[0]["ignores"]
