"""Record event logs of real Spark jobs with a planted cause: ``python record.py FOLDER [NAME…]``; needs pyspark.

``python record.py --plans FILE`` records the plans of queries with each of the settings that tuning changes.

What is recorded lies in ``logs/``, with zstd. Tests read it; they do not need Spark. Each cause has five logs of jobs
that differ in their size and shape, and there are 20 healthy ones. Two causes cannot be had on one small machine:
``planted.py`` makes them of these logs.
"""

from __future__ import annotations

import json
import os
import subprocess
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
    "spark.ui.showConsoleProgress": "false",
}
ADAPTIVE = {"spark.sql.adaptive.enabled": "true"}
Job = Callable[[Any], None]


def _sink(frame: Any) -> None:
    frame.write.format("noop").mode("overwrite").save()


def _grouped(spark: Any, rows: int, keys: int, parts: int = 4) -> None:
    from pyspark.sql import functions as F

    frame = spark.range(0, rows, 1, parts).withColumn("k", F.hash("id") % keys)
    _sink(frame.groupBy("k").agg(F.sum("id"), F.collect_set(F.col("id") % 7)))


def _texts(spark: Any, rows: int, parts: int) -> Any:
    from pyspark.sql import functions as F

    return spark.range(0, rows, 1, parts).withColumn("text", F.sha2(F.col("id").cast("string"), 256))  # fmt: skip


# Healthy jobs


def healthy(spark: Any) -> None:
    _grouped(spark, 4_000_000, 300_000)


def _sorted(rows: int) -> Job:
    return lambda spark: _sink(_texts(spark, rows, 4).sort("text"))


def _joined(rows: int) -> Job:
    def job(spark: Any) -> None:
        left = spark.range(0, rows, 1, 4).selectExpr("id as k", "id * 3 as v")
        right = spark.range(0, rows, 2, 4).selectExpr("id as k", "id * 5 as w")
        _sink(left.join(right, "k"))

    return job


def _window(rows: int) -> Job:
    def job(spark: Any) -> None:
        frame = spark.range(0, rows, 1, 4).selectExpr("id", "hash(id) % 20000 as k")
        _sink(frame.selectExpr("k", "row_number() over (partition by k order by id) as n"))

    return job


def _distinct(rows: int) -> Job:
    def job(spark: Any) -> None:
        spark.range(0, rows, 1, 4).selectExpr("count(distinct hash(id) % 400000)").collect()

    return job


def _repartitioned(rows: int) -> Job:
    return lambda spark: _sink(_texts(spark, rows, 4).repartition(6))


def _words(lines: int) -> Job:
    def job(spark: Any) -> None:
        numbers = spark.sparkContext.parallelize(range(lines), 4)
        pairs = numbers.flatMap(lambda n: [(str(n % 997 + k), 1) for k in range(8)])
        pairs.reduceByKey(int.__add__, 4).collect()

    return job


def _python(rows: int) -> Job:
    def job(spark: Any) -> None:
        from pyspark.sql import functions as F

        work = F.udf(lambda n: sum(range(n % 50)), "long")
        _sink(spark.range(0, rows, 1, 4).withColumn("x", work("id")).groupBy("x").count())

    return job


def _files(rows: int) -> Job:
    def job(spark: Any) -> None:
        with tempfile.TemporaryDirectory() as folder:
            _texts(spark, rows, 3).write.parquet(folder + "/t")
            frame = spark.read.parquet(folder + "/t")
            _sink(frame.selectExpr("substr(text, 1, 4) as k", "id").groupBy("k").sum("id"))

    return job


def _cached(rows: int) -> Job:
    def job(spark: Any) -> None:
        frame = spark.range(0, rows, 1, 4).selectExpr("id", "hash(id) % 1000 as k").cache()
        frame.count()
        _sink(frame.groupBy("k").count())
        _sink(frame.groupBy("k").max("id"))

    return job


def _broadcast_well(rows: int) -> Job:
    def job(spark: Any) -> None:
        large = spark.range(0, rows, 1, 4).selectExpr("id % 1000 as k", "id as v")
        small = spark.range(0, 1000, 1, 2).selectExpr("id as k", "id * 2 as w")
        _sink(large.join(small, "k").groupBy("k").sum("v"))

    return job


# Planted causes


def _tiny_partitions(rows: int, keys: int) -> Job:
    return lambda spark: _grouped(spark, rows, keys)


def _tiny_joined(spark: Any) -> None:
    _joined(300_000)(spark)


def _tiny_splits(rows: int) -> Job:
    def job(spark: Any) -> None:
        from pyspark.sql import functions as F

        with tempfile.TemporaryDirectory() as folder:
            spark.range(0, rows, 1, 2).write.parquet(folder + "/t")
            frame = spark.read.parquet(folder + "/t")
            _sink(frame.groupBy(F.col("id") % 1000).count())

    return job


def _tiny_csv(spark: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        _texts(spark, 120_000, 2).write.csv(folder + "/t")
        frame = spark.read.csv(folder + "/t").toDF("id", "text")
        _sink(frame.groupBy("text").count())


def _skew(rows: int, share: int = 9, parts: int = 12) -> Job:
    def job(spark: Any) -> None:
        from pyspark.sql import functions as F

        key = F.when(F.col("id") % 10 < share, F.lit(1)).otherwise(F.hash("id") % 10_000)
        frame = _texts(spark, rows, 8).withColumn("k", key)
        _sink(frame.repartition(parts, "k").sortWithinPartitions("text"))

    return job


def _skew_joined(spark: Any) -> None:
    from pyspark.sql import functions as F

    key = F.when(F.col("id") % 10 < 9, F.lit(7)).otherwise(F.hash("id") % 10_000)
    large = _texts(spark, 1_500_000, 8).withColumn("k", key)
    _sink(large.join(spark.range(0, 2_000_000, 1, 4).selectExpr("id as k", "id as w"), "k"))


def _spill(rows: int, parts: int = 2) -> Job:
    def job(spark: Any) -> None:
        frame = _texts(spark, rows, 4)
        _sink(frame.repartition(parts, "text").sortWithinPartitions("text"))

    return job


def _broadcast(rows: int, keys: int) -> Job:
    def job(spark: Any) -> None:
        large = spark.range(0, rows, 1, 4).selectExpr(f"id % {keys} as k", "id as v")
        small = spark.range(0, keys, 1, 2).selectExpr("id as k", "id * 2 as w")
        _sink(large.join(small, "k"))

    return job


def _few_tasks(rows: int) -> Job:
    def job(spark: Any) -> None:
        from pyspark.sql import functions as F

        frame = spark.range(0, rows, 1, 4).withColumn("k", F.hash("id"))
        text = F.max(F.sha2(F.col("id").cast("string"), 256))
        _sink(frame.groupBy("k").agg(F.sum("id"), text))

    return job


def _few_sorted(spark: Any) -> None:
    _sink(_texts(spark, 2_500_000, 4).coalesce(4).repartition(1).sortWithinPartitions("text"))


def _retries(parts: int, each: int = 2) -> Job:
    def job(spark: Any) -> None:
        def once(part: int, rows: Any) -> Any:
            from pyspark import TaskContext

            context = TaskContext.get()
            if part % each and context is not None and context.attemptNumber() == 0:
                raise RuntimeError("planted")
            return rows

        numbers = spark.sparkContext.parallelize(range(2000), parts)
        pairs = numbers.mapPartitionsWithIndex(once).map(lambda x: (x % 10, 1))
        pairs.reduceByKey(int.__add__).collect()

    return job


def _idle(times: int, seconds: float) -> Job:
    def job(spark: Any) -> None:
        for _ in range(times):
            time.sleep(seconds)
            _grouped(spark, 50_000, 1000)

    return job


def _garbage(rows: int, keys: int) -> Job:
    """Sets of texts as objects, in a heap that hardly holds them."""

    def job(spark: Any) -> None:
        from pyspark.sql import functions as F

        frame = _texts(spark, rows, 2).withColumn("k", F.col("id") % keys)
        _sink(frame.groupBy("k").agg(F.collect_set("text")))

    return job


def _many_tasks(parts: int, times: int = 1) -> Job:
    def job(spark: Any) -> None:
        for _ in range(times):
            _sink(spark.range(0, 200_000, 1, parts).selectExpr("sha2(cast(id as string), 256)"))

    return job


def _crowded(rows: int) -> Job:
    """So many tasks at once that each has a small part of the memory."""

    def job(spark: Any) -> None:
        _sink(_texts(spark, rows, 16).repartition(16, "text").sortWithinPartitions("text"))

    return job


_HEAP = "driver-memory"
_SLOTS = "slots"
_SPLITS = {"spark.sql.files.maxPartitionBytes": "65536", "spark.sql.files.openCostInBytes": "1024"}
_FORCED = "spark.shuffle.spill.numElementsForceSpillThreshold"
_PARTITIONS = "spark.sql.shuffle.partitions"
_NO_BROADCAST = {"spark.sql.autoBroadcastJoinThreshold": "-1"}

JOBS: dict[str, tuple[Job, dict[str, str]]] = {
    "healthy": (healthy, {}),
    "healthy-2": (_sorted(1_500_000), {}),
    "healthy-3": (_joined(2_000_000), _NO_BROADCAST),
    "healthy-4": (_window(2_000_000), {}),
    "healthy-5": (_distinct(4_000_000), {}),
    "healthy-6": (_repartitioned(2_000_000), {}),
    "healthy-7": (_words(400_000), {}),
    "healthy-8": (_python(1_500_000), {}),
    "healthy-9": (_files(1_200_000), {}),
    "healthy-10": (_cached(4_000_000), {}),
    "healthy-11": (_broadcast_well(6_000_000), {}),
    "healthy-12": (healthy, ADAPTIVE),
    "healthy-13": (_sorted(2_500_000), ADAPTIVE),
    "healthy-14": (_joined(3_000_000), ADAPTIVE | _NO_BROADCAST),
    "healthy-15": (_window(3_000_000), ADAPTIVE),
    "healthy-16": (_distinct(6_000_000), ADAPTIVE | {_PARTITIONS: "40"}),
    "healthy-17": (_files(2_000_000), ADAPTIVE | {_PARTITIONS: "200"}),
    "healthy-18": (_words(700_000), {}),
    "healthy-19": (_python(2_500_000), ADAPTIVE),
    "healthy-20": (_broadcast_well(9_000_000), ADAPTIVE),
    "tiny-partitions": (_tiny_partitions(200_000, 50_000), {_PARTITIONS: "60"}),
    "tiny-partitions-2": (_tiny_partitions(400_000, 90_000), {_PARTITIONS: "120"}),
    "tiny-partitions-3": (_tiny_joined, _NO_BROADCAST | {_PARTITIONS: "90"}),
    "tiny-partitions-4": (_window(300_000), {_PARTITIONS: "200"}),
    "tiny-partitions-5": (_tiny_partitions(600_000, 200_000), ADAPTIVE | {_PARTITIONS: "100", "spark.sql.adaptive.advisoryPartitionSizeInBytes": "16k", "spark.sql.adaptive.coalescePartitions.minPartitionSize": "16k", "spark.sql.adaptive.coalescePartitions.parallelismFirst": "false"}),
    "tiny-splits": (_tiny_splits(2_000_000), _SPLITS),
    "tiny-splits-2": (_tiny_splits(1_200_000), _SPLITS),
    "tiny-splits-3": (_tiny_csv, _SPLITS | {"spark.sql.files.maxPartitionBytes": "131072"}),
    "tiny-splits-4": (_tiny_splits(3_000_000), ADAPTIVE | _SPLITS | {"spark.sql.files.maxPartitionBytes": "98304"}),
    "tiny-splits-5": (_tiny_csv, ADAPTIVE | _SPLITS),
    "skew": (_skew(3_000_000), {}),
    "skew-2": (_skew(2_000_000, 8, 16), {}),
    "skew-3": (_skew(2_500_000, 9, 24), ADAPTIVE),
    "skew-4": (_skew_joined, _NO_BROADCAST | {_PARTITIONS: "12"}),
    "skew-5": (_skew(1_500_000, 9, 8), {}),
    "spill": (_spill(1_500_000), {_FORCED: "100000"}),
    "spill-2": (_spill(1_000_000), {_FORCED: "80000"}),
    "spill-3": (_spill(2_000_000, 3), {_FORCED: "100000"}),
    "spill-4": (_sorted(1_500_000), {_FORCED: "60000"}),
    "spill-5": (_spill(1_200_000), ADAPTIVE | {_FORCED: "60000"}),
    "broadcast": (_broadcast(3_000_000, 1000), _NO_BROADCAST),
    "broadcast-2": (_broadcast(4_000_000, 20_000), _NO_BROADCAST),
    "broadcast-3": (_broadcast(2_500_000, 5000), _NO_BROADCAST | {_PARTITIONS: "8"}),
    "broadcast-4": (_broadcast(6_000_000, 50_000), _NO_BROADCAST),
    "broadcast-5": (_broadcast(3_500_000, 300), ADAPTIVE | _NO_BROADCAST),
    "few-tasks": (_few_tasks(6_000_000), {_PARTITIONS: "1"}),
    "few-tasks-2": (_few_tasks(4_000_000), {_PARTITIONS: "1"}),
    "few-tasks-3": (_few_sorted, {_PARTITIONS: "1"}),
    "few-tasks-4": (_few_tasks(5_000_000), ADAPTIVE | {_PARTITIONS: "1"}),
    "few-tasks-5": (_window(5_000_000), {_PARTITIONS: "1"}),
    "retries": (_retries(12), {}),
    "retries-2": (_retries(30, 3), {}),
    "retries-3": (_retries(8), {}),
    "retries-4": (_retries(60, 5), {}),
    "retries-5": (_retries(20, 4), {}),
    "idle": (_idle(3, 4), {}),
    "idle-2": (_idle(2, 8), {}),
    "idle-3": (_idle(6, 3), {}),
    "idle-4": (_idle(4, 5), ADAPTIVE),
    "idle-5": (_idle(1, 15), {}),
    "garbage": (_garbage(3_000_000, 40), {_HEAP: "700m"}),
    "garbage-2": (_garbage(2_800_000, 60), {_HEAP: "680m"}),
    "garbage-3": (_garbage(3_300_000, 110), {_HEAP: "720m"}),
    "garbage-4": (_garbage(2_800_000, 100), ADAPTIVE | {_HEAP: "660m"}),
    "garbage-5": (_garbage(3_600_000, 80), {_HEAP: "760m"}),
    "many-tasks": (_many_tasks(800), {}),
    "many-tasks-2": (_many_tasks(1200), {}),
    "many-tasks-3": (_many_tasks(600), {}),
    "many-tasks-4": (_many_tasks(700, 2), {}),
    "many-tasks-5": (_many_tasks(900), ADAPTIVE),
    "crowded": (_crowded(3_000_000), {_SLOTS: "16", _HEAP: "640m"}),
    "crowded-2": (_crowded(3_500_000), {_SLOTS: "24", _HEAP: "660m"}),
    "crowded-3": (_crowded(2_500_000), {_SLOTS: "12", _HEAP: "600m"}),
    "crowded-4": (_crowded(3_000_000), ADAPTIVE | {_SLOTS: "16", _HEAP: "600m"}),
    "crowded-5": (_crowded(4_000_000), {_SLOTS: "16", _HEAP: "700m"}),
}  # fmt: skip


def record(name: str, folder: Path) -> None:
    from pyspark.sql import SparkSession

    job, settings = JOBS[name]
    settings = dict(settings)
    slots = settings.pop(_SLOTS, "2")
    settings.pop(_HEAP, None)
    with tempfile.TemporaryDirectory() as logs:
        builder = SparkSession.builder.master(f"local[{slots},4]").appName(f"{name} 2026-11-30")
        told = {"spark.eventLog.enabled": "true", "spark.eventLog.dir": f"file://{logs}"}
        for key, value in {**PLAIN, **told, **settings}.items():
            builder = builder.config(key, value)
        spark = builder.getOrCreate()
        job(spark)
        spark.stop()
        (path,) = (one for one in Path(logs).iterdir() if not one.name.startswith("."))
        lines = path.read_text().splitlines(keepends=True)
    kept = "".join(map(_without_machine, lines))
    packed = zstandard.ZstdCompressor(level=22).compress(kept.encode())
    (folder / f"{name}.zstd").write_bytes(packed)
    print(name, len(lines), "lines", len(packed), "bytes", flush=True)


# What tuning changes, and what of it is in the plan that Spark begins with.
TUNED = (
    {},
    {"spark.sql.autoBroadcastJoinThreshold": "-1"},
    {"spark.sql.adaptive.enabled": "false"},
    {"spark.sql.adaptive.enabled": "false", "spark.sql.autoBroadcastJoinThreshold": "-1"},
    {_PARTITIONS: "7", "spark.sql.files.maxPartitionBytes": "1m", "spark.default.parallelism": "3"},
    {"spark.sql.adaptive.skewJoin.enabled": "false", "spark.sql.adaptive.advisoryPartitionSizeInBytes": "1m"},
)  # fmt: skip


def _queries(spark: Any, rows: int, day: str) -> dict[str, Any]:
    """Return queries by name: one of each name is the same one for any number of rows and any day."""
    frame = spark.read.parquet(day)
    small = spark.range(rows // 50).selectExpr("id as k", "id * 2 as w")
    joined = frame.join(small, "k")
    return {
        "grouped": frame.groupBy("k").count(),
        "joined": joined,
        "joined, then grouped": joined.groupBy("w").sum("v"),
        "joined, then in order": joined.orderBy("v"),
        "joined with itself": joined.groupBy("k").max("v").join(joined.groupBy("k").min("v"), "k"),
        "those that are not there": frame.join(small, "k", "left_anti"),
        "ranked": joined.selectExpr("w", "row_number() over (partition by k order by v) as n"),
        "any pairs": frame.join(small, frame["k"] < small["w"]).groupBy("w").count(),
        "filtered": frame.where(f"v > {rows}").groupBy("k").count(),
        "filtered by another": frame.where(f"v > (select max(id) from range({rows}))").groupBy("k").count(),
        "the largest": frame.orderBy("v").limit(rows),
        "distinct": frame.groupBy("k").agg({"v": "sum"}).union(small.distinct()),
    }  # fmt: skip


def record_plans(file: Path) -> None:
    from pyspark.sql import SparkSession

    spark = (
        SparkSession.builder.master("local[2]").config("spark.ui.enabled", "false").getOrCreate()
    )
    found: dict[str, list[str]] = {}
    with tempfile.TemporaryDirectory() as folder:
        for rows, day in ((4000, "2026-11-29"), (90_000, "2026-11-30")):
            path = f"{folder}/{day}"
            spark.range(0, rows, 1, 2).selectExpr("id % 100 as k", "id as v").write.parquet(path)
            for settings in TUNED:
                for name, value in settings.items():
                    spark.conf.set(name, value)
                for name, query in _queries(spark, rows, path).items():
                    # What the event log has of it.
                    mode = spark._jvm.org.apache.spark.sql.execution.ExplainMode.fromString(
                        "formatted"
                    )
                    text = query._jdf.queryExecution().explainString(mode)
                    found.setdefault(name, []).append(text.replace(folder, "/jobs"))
                for name in settings:
                    spark.conf.unset(name)
    version = spark.version
    spark.stop()
    packed = zstandard.ZstdCompressor(level=22).compress(json.dumps(found).encode())
    file.write_bytes(packed)
    print(version, len(found), "queries", len(packed), "bytes", flush=True)


def _apart(names: list[str], folder: Path) -> None:
    """Record in processes of their own, one a size of the heap: it has that from its beginning."""
    for heap in sorted({_heap(name) for name in names}):
        told = {"PYSPARK_SUBMIT_ARGS": f"--driver-memory {heap} pyspark-shell"}
        some = [name for name in names if _heap(name) == heap]
        command = [sys.executable, __file__, "--here", str(folder), *some]
        subprocess.run(command, check=True, env={**os.environ, **told})


def _heap(name: str) -> str:
    return JOBS[name][1].get(_HEAP, "1g")


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
    if event["Event"] == "SparkListenerTaskStart":
        return ""
    # Of each task many times as many bytes as all else.
    for part in ("Task Info", "Stage Info"):
        if "Accumulables" in (event.get(part) or {}):
            event[part]["Accumulables"] = []
    # Of an attempt that failed: it names files of the machine.
    reason = event.get("Task End Reason") or {}
    for part in ("Stack Trace", "Full Stack Trace", "Accumulator Updates", "Description"):
        reason.pop(part, None)
    for part in ("Properties",):
        if part in event:
            event[part] = {
                k: v
                for k, v in (event[part] or {}).items()
                if k in ("spark.sql.execution.id", "spark.job.description")
            }
    return json.dumps(event, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    if sys.argv[1] == "--here":
        for one in sys.argv[3:]:
            record(one, Path(sys.argv[2]))
    elif sys.argv[1] == "--plans":
        record_plans(Path(sys.argv[2]))
    else:
        where = Path(sys.argv[1])
        where.mkdir(parents=True, exist_ok=True)
        _apart(sys.argv[2:] or list(JOBS), where)
