"""A client of Spark Connect: it runs queries at the server that it is given, and prints whether they were right."""

from __future__ import annotations

import sys

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

spark = SparkSession.builder.remote(sys.argv[1]).getOrCreate()
numbers = spark.range(100_000).withColumn("key", F.col("id") % 1000)
sums = numbers.groupBy("key").agg(F.sum("id").alias("sum")).collect()
right = {row["key"]: row["sum"] for row in sums} == {
    key: sum(range(key, 100_000, 1000)) for key in range(1000)
}
joined = numbers.repartition(7, "id").join(spark.range(50_000), "id").count()
print("right" if right and joined == 50_000 else f"{len(sums)} rows, {joined} rows")
