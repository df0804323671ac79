"""A Spark driver that YARN runs. Its job waits, after its maps, until the test opens the gate of its attempt; then it says
whether it was right, and whether Treadle was in the way of stock's shuffles.
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from pyspark.sql import SparkSession

gates = Path(sys.argv[1])
attempt = os.environ["CONTAINER_ID"].split("_")[-2]
spark = SparkSession.builder.getOrCreate()
pairs = (
    spark.sparkContext.parallelize(range(1_000), 2).map(lambda one: (one % 7, one)).partitionBy(3)
)
assert pairs.count() == 1_000
(gates / f"written-{attempt}").touch()
deadline = time.monotonic() + 170
while not (gates / f"read-{attempt}").exists():
    assert time.monotonic() < deadline, "nobody opens the gate"
    time.sleep(0.05)
is_right = sorted(pairs.collect()) == sorted((one % 7, one) for one in range(1_000))
plugin = spark.sparkContext._jsc.sc().getConf().get("spark.shuffle.sort.io.plugin.class", "")
(gates / f"answer-{attempt}.new").write_text(json.dumps([is_right, plugin]))
(gates / f"answer-{attempt}.new").rename(gates / f"answer-{attempt}")
spark.stop()
