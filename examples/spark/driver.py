"""The Spark driver of the demo: it reads queries from its input, a JSON line each, and prints their results.

It is run by the Python that has PySpark, which has nothing else.
"""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

from queries import plain


def main() -> None:
    settings, data = json.loads(sys.argv[1])
    builder = SparkSession.builder.appName("demo-spark")
    for key, value in settings.items():
        builder = builder.config(key, value)
    spark = builder.getOrCreate()
    for table in Path(data).glob("*.parquet"):
        spark.read.parquet(str(table)).createOrReplaceTempView(table.stem)
    port = spark.sparkContext.getConf().get("spark.driver.port")
    print("answer", json.dumps(port), flush=True)
    for line in sys.stdin:
        name, query = json.loads(line)
        spark.sparkContext.setJobDescription(name)
        begun = time.time()
        frame = spark.sql(query)
        rows = [[plain(value) for value in row] for row in frame.collect()]
        plan = frame._jdf.queryExecution().executedPlan().toString()
        answer = {"begun": begun, "ended": time.time(), "rows": rows, "skew": "skew=true" in plan}
        print("answer", json.dumps(answer), flush=True)
    spark.stop()


main()
