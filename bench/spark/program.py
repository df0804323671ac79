"""A Spark driver that is measured: it shuffles a table as so many pieces, and prints the seconds of each round.

It is run by the Python that has PySpark, which has nothing else.
"""

from __future__ import annotations

import json
import sys
import time

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

# Of a row of SQL: nulls, ten numbers, and the length before it.
ROW = 92
NUMBERS = 9


def shuffle(spark, rows, maps, partitions):
    numbers = [F.xxhash64("id", F.lit(one)).alias(f"n{one}") for one in range(NUMBERS)]
    table = spark.range(0, rows, 1, maps).select("id", *numbers)
    sums = [F.sum("id"), F.count("*"), *(F.max(f"n{one}") for one in range(NUMBERS))]
    found = table.repartition(partitions, "id").agg(*sums).collect()[0]
    assert (found[0] or 0, found[1]) == (rows * (rows - 1) // 2, rows)


def main():
    settings, size, maps, partitions, rounds = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("bench")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    shuffle(spark, 100_000, 4, 4)
    seconds = []
    for rows in (0, size // ROW) * rounds:
        begun = time.perf_counter()
        shuffle(spark, rows, maps, partitions)
        seconds.append(time.perf_counter() - begun)
    spark.stop()
    print("seconds", json.dumps([seconds[::2], seconds[1::2]]))


main()
