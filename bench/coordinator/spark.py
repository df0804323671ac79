"""Have a recurring job of real Spark tuned: ``python bench/coordinator/spark.py [RUNS]``; needs pyspark.

The job has the disease of the report that issue 47 names: splits and partitions that are too small, before and after a
combine. Each run is a ``treadle spark-submit`` of its own. The coordinator reads the event logs. After six runs, a rule
of another package proposes a change that hurts. The last lines say which bars are met.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

SPLITS = "spark.sql.files.maxPartitionBytes"
SIZE = "spark.sql.adaptive.advisoryPartitionSizeInBytes"
ADAPTIVE = "spark.sql.adaptive.enabled"
DISEASE = {
    SPLITS: "64k",
    "spark.sql.files.openCostInBytes": "1k",
    SIZE: "16k",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.adaptive.coalescePartitions.minPartitionSize": "1k",
    "spark.sql.shuffle.partitions": "3000",
}
APPLICATION = """
import sys
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
if sys.argv[1] == "make":
    frame = spark.range(0, 3_000_000, 1, 2).withColumn("k", F.hash("id") % 50_000)
    frame.write.option("parquet.block.size", 131072).parquet(sys.argv[2])
else:
    frame = spark.read.parquet(sys.argv[2])
    grouped = frame.groupBy("k").agg(F.sum("id"), F.min("id"), F.max("id"))
    grouped.write.format("noop").mode("overwrite").save()
"""
# A rule of another package, which proposes what hurts as soon as a file says so.
HARM = """
from pathlib import Path

from treadle.coordinator._finding import Finding


class Harm:
    name = "no adaptive plans"

    def look(self, app):
        if Path("harm").exists():
            return Finding(self.name, "injected", "nothing", 9.0, "spark.sql.adaptive.enabled", 1.0, 0.0)
"""
BARS = {"tuned within": 6, "bytes": 3.0, "seconds": 1.5, "rolled back within": 2}


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 10
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        (folder / "app.py").write_text(APPLICATION)
        package = folder / "rules"
        (package / "harm-1.dist-info").mkdir(parents=True)
        (package / "harm.py").write_text(HARM)
        (package / "harm-1.dist-info" / "METADATA").write_text("Name: harm\nVersion: 1\n")
        (package / "harm-1.dist-info" / "entry_points.txt").write_text(
            "[treadle.coordinator_rules]\nharm = harm:Harm\n"
        )
        command = [
            sys.executable,
            "-m",
            "treadle",
            "coordinator",
            "--listen",
            "127.0.0.1:0",
            "--event-logs",
            "logs",
            "--poll",
            "1",
        ]
        path = os.pathsep.join(filter(None, [str(package), os.environ.get("PYTHONPATH")]))
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1", "PYTHONPATH": path},
        )
        assert process.stdout is not None
        try:
            url = process.stdout.readline().rpartition(" ")[2].strip()
            token = process.stdout.readline().rpartition("#")[2].strip()
            follow(folder, url, token, runs)
        finally:
            process.terminate()
            process.wait(30)


def call(url: str, token: str, body: Any = None) -> Any:
    data = None if body is None else json.dumps(body).encode()
    headers = {"Authorization": f"Bearer {token}", "Content-Type": "application/json"}
    with urllib.request.urlopen(urllib.request.Request(url, data, headers), timeout=30) as answer:
        return json.loads(answer.read())


def submit(folder: Path, url: str, settings: dict[str, str], *arguments: str) -> str:
    """Run a job, and return the line of the decision."""
    import pyspark

    told = {
        "spark.eventLog.enabled": "true",
        "spark.eventLog.dir": f"file://{folder}/logs",
        "spark.ui.enabled": "false",
        **settings,
    }
    options = [text for name, value in told.items() for text in ("--conf", f"{name}={value}")]
    environment = {
        **os.environ,
        "SPARK_HOME": str(Path(pyspark.__file__).parent),
        "PYSPARK_PYTHON": sys.executable,
    }
    if url:
        environment["DASK_TREADLE__COORDINATOR__URL"] = url
    command = [
        sys.executable,
        "-m",
        "treadle",
        "spark-submit",
        "--master",
        "local[2]",
        *options,
        "app.py",
        *arguments,
    ]
    done = subprocess.run(
        command, cwd=folder, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    return next(line for line in done.stderr.splitlines() if line.startswith("treadle:"))


def follow(folder: Path, url: str, token: str, runs: int) -> None:
    submit(folder, "", {"spark.eventLog.enabled": "false"}, "make", "rows")
    print(f"{'run':>4}{'seconds':>9}{'shuffled':>11}  settings of tuning", flush=True)
    key = ""
    rows = []
    for number in range(runs):
        settings = {**DISEASE, "spark.app.name": f"sick report 2026-11-{number % 28 + 1:02}"}
        line = submit(folder, url, settings, "run", "rows")
        identity = line.rpartition("decision ")[2].rstrip(")")
        while True:
            row = call(f"{url}/api/decisions/{identity}", token)
            if row["state"] != "running" and call(f"{url}/api/jobs/{identity}/measures", token):
                break
            time.sleep(0.5)
        rows.append(row)
        tuned = {k: text for k, text in row["settings"].items() if k in (*DISEASE, ADAPTIVE)}
        print(
            f"{number + 1:4}{row['duration']:9.1f}{row['shuffle_bytes'] / 1e6:8.2f} MB  {tuned or ''}",
            flush=True,
        )
        if not key:
            key = row["recurring"]
            call(f"{url}/api/recurring/{key}/mode", token, {"mode": "apply"})
        if number == BARS["tuned within"] - 2:
            # It is seen when the log of the next run, the sixth, is read.
            (folder / "harm").touch()
    changes = call(f"{url}/api/recurring/{key}", token)["tuning"]["changes"]
    for one in changes:
        print(
            f"change {one['number']}: {one['rule']}, {one['parameter']} {one['old']} -> {one['new']}: {one['state']}: {one['reason']}",
            flush=True,
        )
    tell(rows, changes)


def tell(rows: list[dict[str, Any]], changes: list[dict[str, Any]]) -> None:
    """Print each bar of the issue beside what was measured."""
    number = int(BARS["tuned within"])
    sick = [row for row in rows[:number] if not row["settings"]]
    states = {one["parameter"]: one["state"] for one in changes if one["begun_at_run"] < number}
    kept = [name for name in (SPLITS, SIZE) if states.get(name) == "kept"]
    last = rows[number - 1]
    both = [
        row
        for row in rows
        if {SPLITS, SIZE} <= set(row["settings"]) and ADAPTIVE not in row["settings"]
    ]
    seconds = [statistics.fmean(row["duration"] for row in some) for some in (sick, both) if some]
    harm = next((one for one in changes if one["parameter"] == ADAPTIVE), None)
    tried = sum(ADAPTIVE in row["settings"] for row in rows)
    print(f"kept of the two that run {number} or an earlier one tried: {len(kept)}")
    print(f"both in force in run {number}: {'yes' if last in both else 'no'}")
    print(
        f"bytes of run {number}: {sick[0]['shuffle_bytes'] / last['shuffle_bytes']:.1f} times fewer (bar {BARS['bytes']:g})"
    )
    if len(seconds) == 2:
        print(
            f"seconds with both: {seconds[0] / seconds[1]:.1f} times fewer (bar {BARS['seconds']:g})"
        )
    if harm is not None:
        print(
            f"what hurts: {harm['state']} after {tried} runs (bar {BARS['rolled back within']:g})"
        )


if __name__ == "__main__":
    main()
