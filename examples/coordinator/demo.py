"""A coordinator brings a job of Spark onto shuffle servers, watches it, and tunes it: ``make demo-coordinator``.

The job is real Spark's, and is the same file with the same arguments in all of its runs. A server is killed in one run,
and all of them in another one.
"""

from __future__ import annotations

import argparse
import http.server
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.console import Console

sys.path.append(str(Path(__file__).parents[1] / "spark"))

import page
from service import Service
from treadle.coordinator import _charts

HERE = Path(__file__).parent
SPLITS = "spark.sql.files.maxPartitionBytes"
SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
# What the administrator of this Spark has set up, with sizes that are far too small.
DEFAULTS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.ui.showConsoleProgress": "false",
    "spark.driver.host": "127.0.0.1",
    "spark.driver.bindAddress": "127.0.0.1",
    "spark.eventLog.enabled": "true",
    "spark.yarn.queue": "reports",
    SPLITS: "64k",
    "spark.sql.files.openCostInBytes": "1k",
    SIZE: "16k",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
    "spark.sql.shuffle.partitions": "1000",
}
# Jobs of others, which are told to the coordinator by its HTTP interface.
OTHERS = 200
# Runs after which it gives up waiting for both changes.
MOST_RUNS = 15
LONGEST = 600.0


@dataclass
class Run:
    """A run of the job: what was decided, and what came of it."""

    number: int
    what: str
    said: str
    result: str
    row: dict[str, Any]


@dataclass
class Story:
    """What the demo has seen."""

    runs: list[Run] = field(default_factory=list)
    tried: str = ""
    alerts: list[dict[str, Any]] = field(default_factory=list)
    posted: list[dict[str, Any]] = field(default_factory=list)
    recurring: dict[str, Any] = field(default_factory=dict)
    url: str = ""

    @property
    def changes(self) -> list[dict[str, Any]]:
        changes: list[dict[str, Any]] = self.recurring["tuning"]["changes"]
        return changes

    @property
    def results(self) -> set[str]:
        return {run.result for run in self.runs}


class Coordinator:
    """The process, and calls of its HTTP interface as an operator."""

    def __init__(self, stack: ExitStack, directory: Path, service: Service, webhook: str) -> None:
        command = [
            sys.executable, "-m", "treadle", "coordinator", "--listen", "127.0.0.1:0", "--poll", "1",
            "--servers", service.address, "--secret-file", str(service.secret),
            "--event-logs", str(directory / "logs"), "--webhook", webhook,
        ]  # fmt: skip
        environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
        process = subprocess.Popen(
            command, cwd=directory, env=environment, stdout=subprocess.PIPE, text=True
        )
        stack.callback(process.wait)
        stack.callback(process.terminate)
        assert process.stdout is not None
        self.url = process.stdout.readline().rpartition(" ")[2].strip()
        self.page = process.stdout.readline().rpartition(" ")[2].strip()
        if not self.page:
            raise SystemExit("the coordinator has ended")
        self._token = self.page.rpartition("#")[2]

    def call(self, path: str, body: Any = None) -> Any:
        data = None if body is None else json.dumps(body).encode()
        headers = {"Authorization": f"Bearer {self._token}", "Content-Type": "application/json"}
        request = urllib.request.Request(f"{self.url}/api/{path}", data, headers)
        with urllib.request.urlopen(request, timeout=30) as answer:
            return json.loads(answer.read())

    def until(self, path: str, is_there: Any) -> Any:
        """Ask until an answer is what is waited for."""
        deadline = time.monotonic() + LONGEST
        while not is_there(found := self.call(path)):
            if time.monotonic() > deadline:
                raise SystemExit(f"the coordinator's /api/{path} does not change: {found}")
            time.sleep(0.3)
        return found


class Job:
    """The recurring job: the same command in each run, but for its date."""

    def __init__(self, directory: Path, python: str, jar: str) -> None:
        self._directory, self._python = directory, python
        (directory / "logs").mkdir()
        (directory / "conf").mkdir()
        defaults = {
            **DEFAULTS,
            "spark.eventLog.dir": (directory / "logs").as_uri(),
            "spark.local.dir": str(directory / "local"),
            "spark.driver.extraClassPath": jar,
            "spark.executor.extraClassPath": jar,
            # Of the cluster, as the jar is: where the servers are is the coordinator's to say.
            "spark.treadle.secretFile": str(directory / "secret"),
        }
        text = "".join(f"{name} {value}\n" for name, value in defaults.items())
        (directory / "conf" / "spark-defaults.conf").write_text(text)
        told = subprocess.run(
            [python, "-c", "import pyspark; print(*pyspark.__path__)"],
            check=True, capture_output=True, text=True,
        )  # fmt: skip
        self._environment = {
            **os.environ, "SPARK_HOME": told.stdout.strip(), "SPARK_CONF_DIR": str(directory / "conf"),
            "PYSPARK_PYTHON": python, "SPARK_LOCAL_IP": "127.0.0.1",
        }  # fmt: skip

    def _command(self, number: int, what: str = "run") -> list[str]:
        return ["--name", f"nightly report 2026-11-{number:02}", str(HERE / "job.py"), what, "rows"]

    def make(self) -> None:
        self._plain("--conf", "spark.eventLog.enabled=false", *self._command(0, "make"))

    def before(self, number: int) -> str:
        """Run it as it was run before there was a coordinator; return its result."""
        return self._result(self._plain(*self._command(number)))

    def _plain(self, *arguments: str) -> str:
        submit = f"{self._environment['SPARK_HOME']}/bin/spark-submit"
        done = subprocess.run(
            [submit, *arguments], cwd=self._directory, env=self._environment,
            capture_output=True, text=True, timeout=LONGEST, check=False,
        )  # fmt: skip
        if done.returncode:
            raise SystemExit(f"spark-submit has failed:\n{done.stderr[-4000:]}")
        return done.stdout

    def submit(self, number: int, url: str, began: Any = None) -> tuple[str, str]:
        """Run it by `treadle spark-submit`; return what that says of the decision, and the result.

        ``began`` is called when it is decided, before Spark begins.
        """
        process = subprocess.Popen(
            [sys.executable, "-m", "treadle", "spark-submit", *self._command(number)],
            cwd=self._directory,
            env={**self._environment, "DASK_TREADLE__COORDINATOR__URL": url},
            stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
        )  # fmt: skip
        assert process.stdout is not None
        assert process.stderr is not None
        errors: list[str] = []
        said = ""
        try:
            for line in process.stderr:
                errors.append(line)
                if line.startswith("treadle: ") and not said:
                    said = line.removeprefix("treadle: ").strip()
                    if began is not None:
                        threading.Thread(target=began, daemon=True).start()
            out = process.stdout.read()
            process.wait(LONGEST)
        finally:
            # Spark is this same process by now: it ends with the demo.
            process.kill()
        if process.returncode:
            raise SystemExit(f"the job has failed:\n{''.join(errors)[-4000:]}")
        return said, self._result(out)

    @staticmethod
    def _result(out: str) -> str:
        return next(line for line in out.splitlines() if line.startswith("result "))


def listen(stack: ExitStack, posted: list[dict[str, Any]]) -> str:
    """Take what the coordinator posts of alerts, as a chat program does; return the address."""

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(200)
            self.end_headers()

        def log_message(self, *_arguments: Any) -> None:
            pass

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    stack.callback(server.shutdown)
    return f"http://127.0.0.1:{server.server_address[1]}"


def tell_others(coordinator: Coordinator) -> None:
    """Tell of jobs of others, as their schedulers would: what they are, and how they ended."""
    for n in range(OTHERS):
        user, kind = ("ann", "bob", "olga")[n % 3], ("orders", "clicks", "billing", "search")[n % 4]
        job = {"queue": "adhoc", "user": user, "name": f"{kind} {n}", "version": "3.5.9"}
        told = coordinator.call("decisions", {"id": f"other-{n}", "job": job})
        end = {"duration": 60.0 + n, "shuffle_bytes": 1_000_000 * (n % 7)}
        coordinator.call(f"jobs/{told['id']}/end", end)


def story(stack: ExitStack, directory: Path, say: Any) -> Story:
    seen = Story()
    service = Service(stack, directory)
    job = Job(directory, os.environ["TREADLE_SPARK_PYTHON"], os.environ["TREADLE_SPARK_JAR"])
    say("A shuffle service with two servers, a coordinator, and a job of Spark with its input")
    coordinator = Coordinator(stack, directory, service, listen(stack, seen.posted))
    seen.url = coordinator.page
    job.make()
    tell_others(coordinator)
    coordinator.until("health", lambda told: told["is_on"])

    def ended(identity: str, what: str | None, said: str, result: str) -> Run:
        row = coordinator.until(f"decisions/{identity}", lambda one: one["state"] != "running")
        coordinator.until(f"jobs/{identity}/measures", bool)
        done = Run(len(seen.runs) + 1, what or tuning(row), said, result, row)
        seen.runs.append(done)
        say(
            f"  run {done.number}: {row['duration']:.1f} s, {page.size(row['shuffle_bytes'])} shuffled: {done.what}"
        )
        return done

    say("The job runs as it always has. The coordinator reads its event logs")
    known: set[str] = set()
    for number in (1, 2):
        result = job.before(number)
        rows = coordinator.until(
            "jobs?name=nightly", lambda told, n=number: len(told["jobs"]) == n
        )["jobs"]
        (identity,) = {row["id"] for row in rows} - known
        known.add(identity)
        ended(identity, "before there was a coordinator", "", result)

    rule = {
        "name": "reports first",
        "queues": ["reports"],
        "settings": {"spark.treadle.connectTimeout": "5s"},
    }
    tried = coordinator.call("rules/try", {"rule": rule})
    seen.tried = tried["sentence"]
    say(f"A rule for the queue reports, tried on the jobs of a day: {seen.tried}")
    coordinator.call("rules", {"rule": rule, "note": "the demo"})
    say("The rule is switched on. The same job, by treadle spark-submit")

    def submit(what: str | None, began: Any = None) -> Run:
        said, result = job.submit(len(seen.runs) + 1, coordinator.url, began)
        return ended(said.rpartition("decision ")[2].rstrip(")"), what, said, result)

    first = submit("on the shuffle servers, without a change")
    say(f"    {first.said}")

    def lose_one() -> None:
        time.sleep(3)
        service.kill("b")

    submit("a server is killed", lose_one)
    service.begin("c")

    def lose_all() -> None:
        for name in ("a", "c"):
            service.kill(name)

    submit("all servers are killed: it falls back to stock shuffle", lose_all)
    for name in ("d", "e"):
        service.begin(name)
    seen.alerts = coordinator.until("alerts", bool)
    for one in seen.alerts:
        say(f"  alert: {one['text']}")
    # It is asked again when the coordinator has seen the new servers.
    time.sleep(3)
    key = first.row["recurring"]
    coordinator.call(f"recurring/{key}/mode", {"mode": "apply"})
    say("Tuning may apply what it proposes")
    seen.recurring = coordinator.call(f"recurring/{key}")
    while len(seen.runs) < MOST_RUNS and not both(seen):
        submit(None)
        seen.recurring = coordinator.call(f"recurring/{key}")
    if both(seen):
        submit(None)
    seen.recurring = coordinator.call(f"recurring/{key}")
    return seen


def both(seen: Story) -> bool:
    return {SPLITS, SIZE} <= {one["parameter"] for one in seen.changes if one["state"] == "kept"}


def tuning(row: dict[str, Any]) -> str:
    """Say in words what tuning gave to a run."""
    given = [
        f"{name.rpartition('.')[2]} {_charts.setting(float(text[:-1]), name)}"
        for name, text in row["settings"].items()
        if name in (SPLITS, SIZE)
    ]
    if not given:
        return "nothing is changed"
    return ", ".join(given) + (f": change {row['change']} is tried" if row["change"] else "")


def check(seen: Story) -> list[str]:
    """Return what it has not shown."""
    missing = []
    on_service = [run for run in seen.runs if run.row["verdict"] == "service"]
    if len(seen.results) != 1:
        missing.append("runs have different results")
    if len(on_service) != len(seen.runs) - 2:
        missing.append("runs after the rule were not on the service")
    if not any(one["kind"] == "fell back" for one in seen.alerts):
        missing.append("no alert says that a run fell back")
    if not any("fell back" in one["text"] for one in seen.posted):
        missing.append("the webhook got no such alert")
    if not any(one["state"] == "kept" for one in seen.changes):
        missing.append("no change was kept")
    return missing


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--out", type=Path, default=Path("treadle-demo"), help="folder for coordinator.html"
    )
    parser.add_argument(
        "--stay", action="store_true", help="leave the coordinator's page there until Ctrl-C"
    )
    options = parser.parse_args()
    # Processes end by the stack, whatever ends this one.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    console = Console(highlight=False)

    def say(text: str) -> None:
        console.print(text, soft_wrap=True, markup=False)

    begun = time.monotonic()
    with ExitStack() as stack:
        directory = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-")))
        seen = story(stack, directory, say)
        options.out.mkdir(parents=True, exist_ok=True)
        file = options.out / "coordinator.html"
        file.write_text(page.page(seen), encoding="utf-8")
        say(f"Changes of {seen.runs[0].row['name'][:-11]}, by itself:")
        for one in seen.changes:
            say(f"  {one['rule']}: {page.change(one)}: {one['state']}: {one['reason']}")
        missing = check(seen)
        say(f"{time.monotonic() - begun:.0f} s. Report: {file}")
        if options.stay and not missing:
            say(f"The coordinator's page, until Ctrl-C: {seen.url}")
            with suppress(KeyboardInterrupt):
                signal.pause()
    if missing:
        raise SystemExit("not shown: " + "; ".join(missing))
    console.print("[green]✓ all runs have the same result[/green]")


if __name__ == "__main__":
    main()
