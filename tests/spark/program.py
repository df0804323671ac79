"""A Spark driver of a test. It reads names of jobs with their arguments from its input, a JSON line each, and prints what
each has returned.

It is run by the Python that has PySpark, which has nothing else.
"""

from __future__ import annotations

import json
import sys
import time
import traceback
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from random import Random
from threading import Event

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

JOBS = {}


def job(function):
    JOBS[function.__name__] = function
    return function


def passes(gate):
    """Wait until the test opens the gate."""
    deadline = time.monotonic() + 170
    while not Path(gate).exists():
        if time.monotonic() > deadline:
            raise TimeoutError(f"nobody opens {gate}")
        time.sleep(0.01)


def says(directory, name):
    """Tell the test that something has begun."""
    Path(directory, name).touch()


@job
def driver_port(spark):
    return spark.sparkContext.getConf().get("spark.driver.port")


@job
def setting(spark, key):
    return spark.sparkContext._jsc.sc().getConf().get(key, "")


@job
def grouped(spark):
    """SQL: an aggregation, whose partitions are coalesced."""
    frame = (
        spark.range(100_000)
        .groupBy((F.col("id") % 1000).alias("key"))
        .agg(F.sum("id").alias("sum"))
    )
    rows = sorted((row["key"], row["sum"]) for row in frame.collect())
    return [rows == [(key, sum(range(key, 100_000, 1000))) for key in range(1000)], plan(frame)]


@job
def skewed(spark, rows):
    """SQL: a join in which most rows have one key. Its partition is read by ranges of maps."""
    spark.conf.set("spark.sql.autoBroadcastJoinThreshold", "-1")
    spark.conf.set("spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes", "64KB")
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "128KB")
    spark.conf.set("spark.sql.adaptive.coalescePartitions.enabled", "false")
    key = F.when(F.col("id") % 10 < 8, 0).otherwise(F.col("id") % 50)
    # What cannot be compressed much: bytes are read that were written.
    left = spark.range(0, rows, 1, 8).select(
        key.alias("key"), "id", F.sha2(F.col("id").cast("string"), 256).alias("text")
    )
    right = spark.range(50).select(F.col("id").alias("key"), (F.col("id") * 3).alias("value"))
    joined = (
        left.join(right, "key").groupBy().agg(F.count("*"), F.sum("value"), F.sum(F.length("text")))
    )
    count, value, length = joined.collect()[0]
    keys = [0 if one % 10 < 8 else one % 50 for one in range(rows)]
    for name in (
        "autoBroadcastJoinThreshold",
        "adaptive.advisoryPartitionSizeInBytes",
        "adaptive.coalescePartitions.enabled",
    ):
        spark.conf.unset(f"spark.sql.{name}")
    return [[count, value, length] == [rows, 3 * sum(keys), 64 * rows], plan(joined)]


@job
def rebalanced(spark, rows):
    """SQL: rows of which most are for one partition, which is read by ranges of maps, and no row twice."""
    spark.conf.set("spark.sql.adaptive.advisoryPartitionSizeInBytes", "128KB")
    key = F.when(F.col("id") % 10 < 8, 0).otherwise(F.col("id") % 50)
    text = F.sha2(F.col("id").cast("string"), 256)
    frame = spark.range(0, rows, 1, 8).select(key.alias("key"), "id", text.alias("text"))
    frame.createOrReplaceTempView("texts")
    spread = spark.sql("select /*+ rebalance(key) */ * from texts")
    found = spread.groupBy().agg(F.count("*"), F.sum("id"), F.sum(F.length("text")))
    return [list(found.collect()[0]) == [rows, rows * (rows - 1) // 2, 64 * rows], plan(found)]


@job
def localised(spark, rows):
    """SQL: a join that becomes a broadcast as it runs. The session has its other side read map by map."""
    settings = {
        "spark.sql.adaptive.localShuffleReader.enabled": "true",
        "spark.sql.autoBroadcastJoinThreshold": "-1",
        "spark.sql.adaptive.autoBroadcastJoinThreshold": "10MB",
    }
    for key, value in settings.items():
        spark.conf.set(key, value)
    left = spark.range(0, rows, 1, 6).select((F.col("id") % 50).alias("key"), "id")
    right = spark.range(50).select(F.col("id").alias("key"), (F.col("id") * 3).alias("value"))
    joined = left.join(right, "key").groupBy("key").agg(F.count("*"), F.sum("id"), F.sum("value"))
    found = sorted(tuple(row) for row in joined.collect())
    for key in settings:
        spark.conf.unset(key)
    own = [range(key, rows, 50) for key in range(50)]
    expected = [(key, len(one), sum(one), 3 * key * len(one)) for key, one in enumerate(own)]
    return [found == expected, plan(joined)]


@job
def removed(spark):
    """A shuffle that is used again after Spark has removed it, by maps that run again: whether all rows were there each time."""
    rows = spark.sparkContext.parallelize(range(5_000), 4).map(lambda one: (one % 97, one))
    pairs = rows.partitionBy(3)
    found = []
    for _ in range(3):
        found.append(sorted(one for _, one in pairs.collect()) == list(range(5_000)))
        pairs._jrdd.rdd().cleanShuffleDependencies(True)
    return found


@job
def checkpointed(spark, directory):
    """Rows that are read from a checkpoint once they are there, and the shuffle before it is removed."""
    context = spark.sparkContext
    context.setCheckpointDir(directory)
    grouped = context.parallelize(range(5_000), 4).map(lambda one: (one % 97, one)).groupByKey(3)
    lists = grouped.mapValues(sorted)
    lists.checkpoint()
    expected = {key: list(range(key, 5_000, 97)) for key in range(97)}
    found = [dict(lists.collect()) == expected]
    grouped._jrdd.rdd().cleanShuffleDependencies(True)
    found.append(lists.isCheckpointed() and dict(lists.collect()) == expected)
    return found


@job
def placed(spark):
    """For how many tasks that read a shuffle Spark prefers a host."""
    rows = spark.range(0, 1000, 1, 4).repartition(3, "id")._jdf.queryExecution().toRdd()
    context = spark.sparkContext._jsc.sc()
    counted = rows.count()
    hosts = [context.getPreferredLocs(rows, one).size() for one in range(rows.getNumPartitions())]
    return [counted, sum(hosts)]


@job
def window(spark):
    frame = spark.range(5_000).withColumn("key", F.col("id") % 7)
    frame.createOrReplaceTempView("numbers")
    query = "select key, id, row_number() over (partition by key order by id desc) as place from numbers"
    rows = spark.sql(query).repartition(5).collect()
    found = sorted((row["key"], row["id"], row["place"]) for row in rows)
    expected = []
    for key in range(7):
        for place, number in enumerate(sorted(range(key, 5_000, 7), reverse=True)):
            expected.append((key, number, place + 1))
    return found == sorted(expected)


@job
def empty(spark):
    """Partitions and maps without rows, and shuffles without any."""
    frame = spark.range(0, 1_000, 1, 6).where("id < 10").repartition(40, "id")
    none = spark.range(0).repartition(3).count()
    rdd = spark.sparkContext.parallelize([], 4).map(lambda one: (one, one)).groupByKey(3)
    return [sorted(row["id"] for row in frame.collect()) == list(range(10)), none, rdd.count()]


@job
def reduced(spark):
    rdd = spark.sparkContext.parallelize(range(10_000), 6).map(lambda one: (one % 97, one))
    found = dict(rdd.reduceByKey(lambda one, other: one + other, 5).collect())
    return found == {key: sum(range(key, 10_000, 97)) for key in range(97)}


@job
def failing(spark):
    """A job whose own code fails, as its rows are written."""
    rdd = spark.sparkContext.parallelize(range(10), 2).map(lambda one: (one, 1 // (one - 5)))
    return rdd.partitionBy(3).count()


@job
def ordered(spark):
    rdd = spark.sparkContext.parallelize([(one * 7919) % 10_007 for one in range(5_000)], 5)
    found = rdd.map(lambda one: (one, str(one))).sortByKey(numPartitions=4).collect()
    return found == sorted((one * 7919 % 10_007, str(one * 7919 % 10_007)) for one in range(5_000))


@job
def listed(spark):
    rdd = spark.sparkContext.parallelize(range(3_000), 5).map(lambda one: (one % 11, one))
    found = {key: sorted(values) for key, values in rdd.groupByKey(4).collect()}
    return found == {key: list(range(key, 3_000, 11)) for key in range(11)}


@job
def repartitioned(spark):
    rdd = spark.sparkContext.parallelize(range(5_000), 3).repartition(9)
    return [sorted(rdd.collect()) == list(range(5_000)), rdd.getNumPartitions()]


@job
def objects(spark):
    """RDDs of Java's objects: what Spark's default serialiser writes, with and without combining, and sorted."""
    context = spark.sparkContext
    jvm = context._jvm
    pairs = jvm.java.util.ArrayList()
    for one in range(600):
        values = jvm.java.util.ArrayList()
        values.add(one)
        pairs.add(jvm.scala.Tuple2(f"key {one % 13:02}", values))
    rdd = context._jsc.parallelizePairs(pairs, 4)
    grouped = {}
    for pair in rdd.groupByKey(5).collect():
        lists = []
        iterator = pair._2().iterator()
        while iterator.hasNext():
            lists.extend(iterator.next())
        grouped[pair._1()] = sorted(lists)
    keys = [pair._1() for pair in rdd.sortByKey(True, 3).collect()]
    counted = dict(rdd.countByKey())
    expected = {f"key {key:02}": list(range(key, 600, 13)) for key in range(13)}
    return [
        grouped == expected,
        keys == sorted(f"key {one % 13:02}" for one in range(600)),
        counted == {key: len(values) for key, values in expected.items()},
    ]


@job
def writables(spark, directory):
    """Hadoop's objects, of which a reader has one for all of its rows, as Kryo writes them."""
    context = spark.sparkContext
    source, found = f"{directory}/source", f"{directory}/found"
    pairs = [(one, f"text {one}") for one in range(1_000)]
    context.parallelize(pairs, 2).saveAsSequenceFile(source)
    jvm = context._jvm
    names = ("org.apache.hadoop.io.IntWritable", "org.apache.hadoop.io.Text")
    kinds = [jvm.java.lang.Class.forName(name) for name in names]
    read = context._jsc.sequenceFile(source, *kinds)
    read.partitionBy(jvm.org.apache.spark.HashPartitioner(3)).saveAsTextFile(found)
    lines = context.textFile(found).collect()
    return sorted(lines) == sorted(f"({number},{text})" for number, text in pairs)


@job
def large(spark, rows):
    """More rows than Spark has memory for in a task: they are spilled."""
    text = F.sha2(F.col("id").cast("string"), 512)
    frame = spark.range(0, rows, 1, 2).select("id", text.alias("text"))
    spread = frame.repartition(8, "id").agg(F.count("*"), F.sum("id"), F.sum(F.length("text")))
    return list(spread.collect()[0]) == [rows, rows * (rows - 1) // 2, 128 * rows]


@job
def gated(spark, directory, maps, partitions, readers):
    """Pairs of a shuffle whose maps tell when they end. Map ``maps - 1`` waits for the gate `maps`, readers for `readers`."""

    def write(index, rows):
        if index == maps - 1:
            passes(Path(directory, "maps"))
        says(directory, f"map-{index}-{time.time_ns()}")
        return rows

    def read(index, rows):
        says(directory, f"reader-{index}-{time.time_ns()}")
        if readers:
            passes(Path(directory, "readers"))
        return [sorted(rows)]

    context = spark.sparkContext
    ended = Event()

    def watch():
        status = context.statusTracker()
        while not ended.wait(0.05):
            for stage in status.getActiveStageIds():
                if info := status.getStageInfo(stage):
                    says(directory, f"completed-{info.numCompletedTasks}")

    rows = context.parallelize(range(1_000 * maps), maps).mapPartitionsWithIndex(write)
    pairs = rows.map(lambda one: (one % 1_009, one)).partitionBy(partitions)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            found = pairs.mapPartitionsWithIndex(read).collect()
        finally:
            ended.set()
        watching.result()
    return sorted(pair[1] for part in found for pair in part) == list(range(1_000 * maps))


@job
def kept(spark, directory, maps, partitions, width=0):
    """The same in two jobs with one shuffle, with the gate `between` between them: the maps run once.
    ``width``: how many bytes each row has beside its numbers, which cannot be compressed."""

    def write(index, rows):
        says(directory, f"map-{index}-{time.time_ns()}")
        return rows

    def row(one):
        return one % 1_009, (one, Random(one).randbytes(width))

    context = spark.sparkContext
    rows = context.parallelize(range(1_000 * maps), maps).mapPartitionsWithIndex(write)
    pairs = rows.map(row).partitionBy(partitions)
    before = pairs.count()
    says(directory, "between-begun")
    passes(Path(directory, "between"))
    found = pairs.glom().collect()
    rows = sorted(pair for part in found for pair in part)
    return [before, rows == sorted(map(row, range(1_000 * maps)))]


@job
def differing(spark, directory, maps):
    """Two tasks that read two partitions each, of rows that are others each time a map runs. Each waits in its first partition
    for a gate, which is another one for later attempts. How many runs of each map each task has read."""

    def write(index, _):
        run = time.time_ns()
        # More than is on its way to Python, so that the second partition is read after the gate.
        for partition in range(4):
            for part in range(160):
                yield partition, (index, run, bytes([part]) * 50_000)

    def read(index, rows):
        runs = {}
        for _, (map_index, run, _) in rows:
            if not runs:
                attempt = len(list(Path(directory).glob(f"reader-{index}-*")))
                says(directory, f"reader-{index}-{time.time_ns()}")
                passes(Path(directory, "later" if attempt else f"first-{index}"))
            runs.setdefault(map_index, set()).add(run)
        says(directory, f"read-{index}")
        return [sorted(len(one) for one in runs.values())]

    context = spark.sparkContext
    rows = context.parallelize(range(maps), maps).mapPartitionsWithIndex(write)
    pairs = rows.partitionBy(4, lambda key: key)
    return pairs.coalesce(2).mapPartitionsWithIndex(read).collect()


@job
def replaced(spark, directory, tasks, differ):
    """Three stages. The second one's tasks 0 and 1 wait in their first run for the gates `go-0` and `go-1`, and the last one's
    second task waits for `readers`. `replaced` says that Spark counts another run of task 0 than before. ``differ``: whether
    the second one's rows say which run they are of.
    Whether all rows were there, and which runs of task 0 readers have read: by their order, from 0."""

    def second(index, rows):
        rows = list(rows)
        run = len(list(Path(directory).glob(f"second-{index}-*")))
        says(directory, f"second-{index}-{time.time_ns()}")
        if index < 2 and run == 0:
            passes(Path(directory, f"go-{index}"))
        return [(key % 1_013, (one, index, run if differ else 0)) for key, one in rows]

    def read(index, rows):
        says(directory, f"reader-{index}-{time.time_ns()}")
        if index == 1:
            passes(Path(directory, "readers"))
        return rows

    def runs_of(rows):
        return {run for _, (_, index, run) in rows if index == 0}

    context = spark.sparkContext
    ended = Event()

    def watch():
        """Look at the runs of first maps that Spark's tracker names."""
        tracker = context._jvm.org.apache.spark.SparkEnv.get().mapOutputTracker()
        first = {}
        while not ended.wait(0.02):
            if not any(Path(directory).glob("reader-1-*")):
                continue
            for shuffle in (0, 1):
                run = tracker.shuffleStatuses().apply(shuffle).mapStatuses()[0].mapId()
                if run != first.setdefault(shuffle, run):
                    says(directory, "replaced")
                    return

    rows = context.parallelize(range(1_000 * tasks), tasks).map(lambda one: (one, one))
    between = rows.partitionBy(tasks).mapPartitionsWithIndex(second)
    pairs = between.partitionBy(tasks)
    with ThreadPoolExecutor(1) as pool:
        watching = pool.submit(watch)
        try:
            found = pairs.mapPartitionsWithIndex(read).collect()
            later = pairs.collect()
        finally:
            ended.set()
        watching.result()
    everything = list(range(1_000 * tasks))
    is_whole = all(sorted(row[0] for _, row in each) == everything for each in (found, later))
    return [is_whole, sorted(runs_of(found) | runs_of(later))]


@job
def killed(spark, directory, reads):
    """A job that is cancelled while it waits for the shuffle service. What Spark says, and how long its tasks took to end.
    ``reads``: its tasks wait for rows that were written before, and not to write some."""
    context = spark.sparkContext

    def write(index, rows):
        says(directory, f"map-{index}-{time.time_ns()}")
        return rows

    rows = context.parallelize(range(10), 2).mapPartitionsWithIndex(write)
    pairs = rows.map(lambda one: (one, one)).partitionBy(3)
    if reads:
        pairs.count()
        says(directory, "written")
        passes(Path(directory, "read"))

    def work():
        context.setJobGroup("cancelled", "a job that is cancelled")
        return pairs.count()

    with ThreadPoolExecutor(1) as pool:
        future = pool.submit(work)
        passes(Path(directory, "cancel"))
        while reads and not tasks_run(context):
            time.sleep(0.01)
        context.cancelJobGroup("cancelled")
        failed = type(future.exception(120)).__name__
    begun = time.monotonic()
    while tasks_run(context):
        if time.monotonic() - begun > 120:
            return [failed, "its tasks go on"]
        time.sleep(0.01)
    return [failed, "ended"]


def tasks_run(context):
    status = context._jsc.sc().statusTracker()
    return any(one.numRunningTasks() for one in status.getExecutorInfos())


@job
def slow(spark, directory, maps):
    """A job one of whose maps is slow in its first attempt: Spark runs it a second time."""

    def write(index, rows):
        rows = list(rows)
        name = Path(directory, f"attempt-{index}-{time.time_ns()}")
        name.touch()
        if index == 0 and len(list(Path(directory).glob("attempt-0-*"))) == 1:
            passes(Path(directory, "slow"))
        return rows

    context = spark.sparkContext
    rows = context.parallelize(range(1_000 * maps), maps).mapPartitionsWithIndex(write)
    found = rows.map(lambda one: (one % 31, one)).groupByKey(3).mapValues(sorted).collect()
    return sorted(found) == [(key, list(range(key, 1_000 * maps, 31))) for key in range(31)]


@job
def streamed(spark, directory):
    """A stream of files in micro-batches, whose state goes on from one run of the query to the next."""
    source = Path(directory, "source")
    source.mkdir()
    # Each has a file of its state.
    before = spark.conf.get("spark.sql.shuffle.partitions")
    spark.conf.set("spark.sql.shuffle.partitions", "3")
    counts, ends = [], []
    for batch in range(2):
        for part in range(2):
            numbers = range(100 * (2 * batch + part), 100 * (2 * batch + part + 1))
            Path(source, f"{batch}-{part}.json").write_text(
                "\n".join(f'{{"n": {one}}}' for one in numbers)
            )
        stream = (
            spark.readStream.schema("n long").option("maxFilesPerTrigger", "1").json(str(source))
        )
        grouped = stream.groupBy((F.col("n") % 7).alias("key")).agg(F.sum("n").alias("sum"))

        def keep(frame, number):
            counts.append({row["key"]: row["sum"] for row in frame.collect()})

        writer = grouped.writeStream.outputMode("complete").foreachBatch(keep)
        checkpoint = str(Path(directory, "checkpoint"))
        query = writer.option("checkpointLocation", checkpoint).trigger(availableNow=True).start()
        query.awaitTermination()
        ends.append(counts[-1])
    spark.conf.set("spark.sql.shuffle.partitions", before)
    # One batch for each file.
    expected = [{key: sum(range(key, end, 7)) for key in range(7)} for end in (200, 400)]
    return [len(counts), ends == expected]


@job
def barred(spark):
    """A stage whose tasks run at the same time and wait for each other, between two shuffles."""

    def together(rows):
        mine = sorted(rows)
        told = BarrierTaskContext.get().allGather(str(len(mine)))
        return [(one, sum(map(int, told))) for _, one in mine]

    rows = spark.sparkContext.parallelize(range(4_000), 4).map(lambda one: (one % 13, one))
    both = rows.partitionBy(2).barrier().mapPartitions(together)
    found = both.map(lambda pair: (pair[0] % 17, pair)).groupByKey(3).flatMap(lambda one: one[1])
    return sorted(found.collect()) == [(one, 4_000) for one in range(4_000)]


@job
def described(spark, description):
    """A query with a description. Where Spark answers questions about the application."""
    context = spark.sparkContext
    context.setJobDescription(description)
    spark.range(1_000).groupBy((F.col("id") % 7).alias("key")).agg(F.sum("id")).collect()
    context.setJobDescription(None)
    return f"{context.uiWebUrl}/api/v1/applications/{context.applicationId}"


def plan(frame):
    """The plan of a query that has run."""
    return frame._jdf.queryExecution().executedPlan().toString()


def main():
    settings = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("tests")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for line in sys.stdin:
        name, *arguments = json.loads(line)
        try:
            answer = ["value", JOBS[name](spark, *arguments)]
        except Exception:
            answer = ["error", traceback.format_exc()]
        print("answer", json.dumps(answer), flush=True)
    spark.stop()


main()
