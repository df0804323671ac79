"""Record event logs of real Spark jobs with a planted cause: ``python record.py FOLDER [NAME…]``; needs pyspark.

What is recorded lies in ``logs/``, with zstd. Tests read it; they do not need Spark.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import zstandard

PLAIN = {
    "spark.sql.adaptive.enabled": "false",
    "spark.sql.shuffle.partitions": "4",
    "spark.ui.enabled": "false",
}


def _grouped(spark: Any, rows: int, keys: int, parts: int = 4) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(0, rows, 1, parts).withColumn("k", F.hash("id") % keys)
    frame.groupBy("k").agg(F.sum("id"), F.collect_set(F.col("id") % 7)).write.format("noop").mode(
        "overwrite"
    ).save()


def healthy(spark: Any) -> None:
    _grouped(spark, 4_000_000, 300_000)


def tiny_partitions(spark: Any) -> None:
    _grouped(spark, 200_000, 50_000)


def tiny_splits(spark: Any) -> None:
    from pyspark.sql import functions as F

    with tempfile.TemporaryDirectory() as folder:
        spark.range(0, 2_000_000, 1, 2).write.parquet(folder + "/t")
        frame = spark.read.parquet(folder + "/t")
        frame.groupBy(F.col("id") % 1000).count().write.format("noop").mode("overwrite").save()


def skew(spark: Any) -> None:
    from pyspark.sql import functions as F

    key = F.when(F.col("id") % 10 < 9, F.lit(1)).otherwise(F.hash("id") % 10_000)
    frame = (
        spark.range(0, 3_000_000, 1, 8)
        .withColumn("k", key)
        .withColumn("text", F.sha2(F.col("id").cast("string"), 256))
    )
    frame.repartition(12, "k").sortWithinPartitions("text").write.format("noop").mode(
        "overwrite"
    ).save()


def spill(spark: Any) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(0, 1_500_000, 1, 4).withColumn(
        "text", F.sha2(F.col("id").cast("string"), 256)
    )
    frame.repartition(2, "text").sortWithinPartitions("text").write.format("noop").mode(
        "overwrite"
    ).save()


def broadcast(spark: Any) -> None:
    large = spark.range(0, 3_000_000, 1, 4).selectExpr("id % 1000 as k", "id as v")
    small = spark.range(0, 1000, 1, 2).selectExpr("id as k", "id * 2 as w")
    large.join(small, "k").write.format("noop").mode("overwrite").save()


def few_tasks(spark: Any) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(0, 6_000_000, 1, 4).withColumn("k", F.hash("id"))
    frame.groupBy("k").agg(
        F.sum("id"), F.max(F.sha2(F.col("id").cast("string"), 256))
    ).write.format("noop").mode("overwrite").save()


def retries(spark: Any) -> None:
    def once(part: int, rows: Any) -> Any:
        from pyspark import TaskContext

        context = TaskContext.get()
        if part % 2 and context is not None and context.attemptNumber() == 0:
            raise RuntimeError("planted")
        return rows

    spark.sparkContext.parallelize(range(2000), 12).mapPartitionsWithIndex(once).map(
        lambda x: (x % 10, 1)
    ).reduceByKey(int.__add__).collect()


def idle(spark: Any) -> None:
    for _ in range(3):
        time.sleep(4)
        _grouped(spark, 50_000, 1000)


JOBS: dict[str, tuple[Callable[[Any], None], dict[str, str]]] = {
    "healthy": (healthy, {}),
    "tiny-partitions": (tiny_partitions, {"spark.sql.shuffle.partitions": "60"}),
    "tiny-splits": (tiny_splits, {"spark.sql.files.maxPartitionBytes": "65536", "spark.sql.files.openCostInBytes": "1024"}),
    "skew": (skew, {}),
    "spill": (spill, {"spark.shuffle.spill.numElementsForceSpillThreshold": "100000"}),
    "broadcast": (broadcast, {"spark.sql.autoBroadcastJoinThreshold": "-1"}),
    "few-tasks": (few_tasks, {"spark.sql.shuffle.partitions": "1"}),
    "retries": (retries, {}),
    "idle": (idle, {}),
}  # fmt: skip


def record(name: str, folder: Path) -> None:
    from pyspark.sql import SparkSession

    job, settings = JOBS[name]
    with tempfile.TemporaryDirectory() as logs:
        builder = SparkSession.builder.master("local[2,4]").appName(f"{name} 2026-11-30")
        told = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{logs}"}
        for key, value in {**PLAIN, **told, **settings}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        job(spark)
        spark.stop()
        (path,) = (one for one in Path(logs).iterdir() if not one.name.startswith("."))
        lines = path.read_text().splitlines(keepends=True)
    kept = "".join(map(_without_machine, lines))
    packed = zstandard.ZstdCompressor(level=19).compress(kept.encode())
    (folder / f"{name}.zstd").write_bytes(packed)
    print(name, len(lines), "lines", len(packed), "bytes", flush=True)


def _without_machine(line: str) -> str:
    """Leave out what names the machine, and what no test reads."""
    event = json.loads(line)
    if event["Event"] == "SparkListenerEnvironmentUpdate":
        for part in (
            "Hadoop Properties",
            "System Properties",
            "Classpath Entries",
            "Metrics Properties",
            "JVM Information",
        ):
            event[part] = {}
        properties = event["Spark Properties"]
        event["Spark Properties"] = {
            k: v
            for k, v in properties.items()
            if "dir" not in k.lower() and "host" not in k and "java" not in k.lower()
        }
    for place in ("Host", "host"):
        for part in (
            event,
            event.get("Task Info") or {},
            event.get("Block Manager ID") or {},
            event.get("Executor Info") or {},
        ):
            if place in part:
                part[place] = "host"
    if event["Event"].startswith("SparkListenerResourceProfile"):
        return ""
    for part in ("Properties",):
        if part in event:
            event[part] = {
                k: v
                for k, v in (event[part] or {}).items()
                if k in ("spark.sql.execution.id", "spark.job.description")
            }
    return json.dumps(event, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    where = Path(sys.argv[1])
    where.mkdir(parents=True, exist_ok=True)
    for one in sys.argv[2:] or JOBS:
        record(one, where)
