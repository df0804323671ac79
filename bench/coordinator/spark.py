"""Have a recurring job of real Spark tuned: ``python bench/coordinator/spark.py [RUNS]``; needs pyspark.

The job has the disease of the report that issue 47 names: splits and partitions that are too small, before and after a
combine. Each run is a ``treadle spark-submit`` of its own. The coordinator reads the event logs.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
import urllib.request
from pathlib import Path
from typing import Any

DISEASE = {
    "spark.sql.files.maxPartitionBytes": "128k",
    "spark.sql.files.openCostInBytes": "1k",
    "spark.sql.adaptive.advisoryPartitionSizeInBytes": "64k",
    "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false",
    "spark.sql.shuffle.partitions": "40",
}
APPLICATION = """
import sys
from pyspark.sql import SparkSession, functions as F

spark = SparkSession.builder.getOrCreate()
if sys.argv[1] == "make":
    frame = spark.range(0, 800_000, 1, 2).withColumn("k", F.hash("id") % 20_000)
    frame.write.option("parquet.block.size", 131072).parquet(sys.argv[2])
else:
    frame = spark.read.parquet(sys.argv[2])
    grouped = frame.groupBy("k").agg(F.sum("id"), F.min("id"), F.max("id"))
    grouped.write.format("noop").mode("overwrite").save()
"""


def main() -> None:
    runs = int(sys.argv[1]) if len(sys.argv) > 1 else 24
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "logs").mkdir()
        (folder / "app.py").write_text(APPLICATION)
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
        process = subprocess.Popen(
            command,
            cwd=folder,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONUNBUFFERED": "1"},
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
    for number in range(runs):
        settings = {**DISEASE, "spark.app.name": f"sick report 2026-11-{number % 28 + 1:02}"}
        line = submit(folder, url, settings, "run", "rows")
        identity = line.rpartition("decision ")[2].rstrip(")")
        while True:
            row = call(f"{url}/api/decisions/{identity}", token)
            if row["state"] != "running" and call(f"{url}/api/jobs/{identity}/measures", token):
                break
            time.sleep(0.5)
        tuned = {name: text for name, text in row["settings"].items() if name in DISEASE}
        print(
            f"{number + 1:4}{row['duration']:9.1f}{row['shuffle_bytes'] / 1e6:8.2f} MB  {tuned or ''}",
            flush=True,
        )
        if not key:
            key = row["recurring"]
            call(f"{url}/api/recurring/{key}/mode", token, {"mode": "apply"})
    for change in call(f"{url}/api/recurring/{key}", token)["tuning"]["changes"]:
        print(
            f"change {change['number']}: {change['rule']}, {change['parameter']} {change['old']} -> {change['new']}: {change['state']}: {change['reason']}",
            flush=True,
        )


if __name__ == "__main__":
    main()
