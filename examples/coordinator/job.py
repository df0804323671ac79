"""The recurring job of the demo: sums by key. It knows of no shuffle service and of no coordinator.

It is run by the Python that has PySpark, which has nothing else.
"""

from __future__ import annotations

import sys
import zlib

from pyspark.sql import SparkSession
from pyspark.sql import functions as F


def main() -> None:
    what, folder = sys.argv[1:3]
    spark = SparkSession.builder.getOrCreate()
    if what == "make":
        frame = spark.range(0, 2_000_000, 1, 2).withColumn("k", F.hash("id") % 40_000)
        frame.write.option("parquet.block.size", 131072).parquet(folder)
        return
    frame = spark.read.parquet(folder)
    sums = frame.groupBy("k").agg(F.sum("id").alias("sum"), F.min("id"), F.max("id"))
    rows = sorted(tuple(row) for row in sums.collect())
    print(f"result {len(rows)} {zlib.crc32(repr(rows).encode()):08x}", flush=True)
    spark.stop()


main()
