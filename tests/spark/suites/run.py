"""Run Spark's own tests of shuffles and of adaptive execution on the shuffle service: ``make test-spark-suites``.

They are those of Spark 3.5.9, whose jars Maven Central has. ``KNOWN`` has each test that fails, with its reason: another
one that fails, or one of these that passes, is an error.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[3] / "examples" / "spark"))

from service import Service

HERE = Path(__file__).parent
JAR = os.environ["TREADLE_SPARK_JAR"]
# The folder of PyPI's pyspark 3.5.9, from whose jars executors start.
HOME = os.environ["TREADLE_SPARK_HOME"]
LONGEST = 3000

NO_FILES = "it looks for the local files of Spark's own shuffle"
NO_LOCAL_READS = "it looks for local shuffle reads, which are off: rows are near no executor"
NO_HOSTS = "it wants hosts to be preferred, and rows at the service have none"
NO_LOCAL_BLOCKS = "it counts blocks of this host"
OTHER_SIZES = "it knows how many bytes Spark's own files take"
KNOWN = {
    "org.apache.spark.TreadleShuffleSuite": {
        "shuffle with different compression settings (SPARK-3426)": NO_FILES,
        "[SPARK-4085] rerun map stage if reduce stage cannot find its local shuffle file": NO_FILES,
        "cannot find its local shuffle file if no execution of the stage and rerun shuffle": NO_FILES,
        "SPARK-36206: shuffle checksum detect disk corruption": NO_FILES,
    },
    "org.apache.spark.sql.execution.adaptive.AdaptiveQueryExecSuite": {
        "Change merge join to broadcast join": NO_LOCAL_READS,
        "Change merge join to broadcast join without local shuffle read": NO_HOSTS,
        "Reuse the parallelism of coalesced shuffle in local shuffle read": NO_LOCAL_READS,
        "Reuse the default parallelism in local shuffle read": NO_LOCAL_READS,
        "Scalar subquery": NO_LOCAL_READS,
        "Scalar subquery in later stages": NO_LOCAL_READS,
        "multiple joins": NO_LOCAL_READS,
        "multiple joins with aggregate": NO_LOCAL_READS,
        "multiple joins with aggregate 2": NO_LOCAL_READS,
        "Exchange reuse": NO_LOCAL_READS,
        "Exchange reuse with subqueries": NO_LOCAL_READS,
        "Exchange reuse across subqueries": NO_LOCAL_READS,
        "Subquery reuse": NO_LOCAL_READS,
        "Broadcast exchange reuse across subqueries": NO_LOCAL_READS,
        "metrics of the shuffle read": NO_LOCAL_READS,
        "SPARK-33551: Do not use AQE shuffle read for repartition": NO_LOCAL_READS,
        "SPARK-35650: Use local shuffle read if can not coalesce number of partitions": NO_LOCAL_READS,
        "SPARK-35794: Allow custom plugin for cost evaluator": NO_LOCAL_READS,
        "SPARK-35264: Support AQE side shuffled hash join formula": OTHER_SIZES,
        "SPARK-35725: Support optimize skewed partitions in RebalancePartitions": OTHER_SIZES,
        "SPARK-37357: Add small partition factor for rebalance partitions": OTHER_SIZES,
        "SPARK-34091: Batch shuffle fetch in AQE partition coalescing": NO_LOCAL_BLOCKS,
    },
}
# What Spark's build gives its tests, so that Java 17 lets them in.
OPENED = (
    *("java.lang", "java.lang.invoke", "java.lang.reflect", "java.io", "java.net", "java.nio", "java.util"),
    *("java.util.concurrent", "java.util.concurrent.atomic", "jdk.internal.ref", "sun.nio.ch", "sun.nio.cs"),
    *("sun.security.action", "sun.util.calendar"),
)  # fmt: skip


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="treadle-suites-")))
        listed = folder / "classpath"
        maven = ("mvn", "-q", "-B", "-f", str(HERE / "pom.xml"), "dependency:build-classpath")
        subprocess.run([*maven, f"-Dmdep.outputFile={listed}"], check=True)
        classes = folder / "classes"
        sources = list(map(str, HERE.glob("src/**/*.java")))
        subprocess.run(
            ["javac", "-nowarn", "-cp", listed.read_text(), "-d", classes, *sources], check=True
        )
        settings = Service(stack, folder).settings()
        path = os.pathsep.join([str(classes), JAR, listed.read_text()])
        wrong = [
            line
            for suite in sys.argv[1:] or KNOWN
            for line in run(suite, folder, path, settings, KNOWN.get(suite, {}))
        ]
    for line in wrong:
        print(line)
    raise SystemExit(1 if wrong else 0)


def run(
    suite: str, folder: Path, path: str, settings: dict[str, str], known: dict[str, str]
) -> list[str]:
    """Run a suite. Returns what is wrong with its outcome."""
    report = folder / f"{suite}.txt"
    given = {**settings, "spark.testing": "true", "spark.test.home": HOME}
    command = [
        *("java", "-Xmx3g", "-cp", path, "-Djdk.reflect.useDirectMethodHandle=false"),
        *(f"--add-opens=java.base/{one}=ALL-UNNAMED" for one in OPENED),
        *(f"-D{name}={value}" for name, value in given.items()),
        *("org.scalatest.tools.Runner", "-R", str(folder / "classes"), "-fW", str(report), "-s", suite),
    ]  # fmt: skip
    # Executors are started with Spark's own scripts, which take the tests from here.
    environment = {
        **os.environ,
        "SPARK_HOME": HOME,
        "SPARK_SCALA_VERSION": "2.12",
        "SPARK_TESTING": "1",
        "SPARK_LOCAL_IP": "127.0.0.1",
        "SPARK_DIST_CLASSPATH": path,
    }
    with (folder / f"{suite}.log").open("w") as log:
        subprocess.run(
            command,
            cwd=folder,
            env=environment,
            stdout=log,
            stderr=log,
            timeout=LONGEST,
            check=False,
        )
    text = report.read_text() if report.exists() else ""
    ran = set(re.findall(r"^- (.*?)(?: \*\*\* FAILED \*\*\*.*)?$", text, re.MULTILINE))
    failed = set(re.findall(r"^- (.*) \*\*\* FAILED \*\*\*", text, re.MULTILINE))
    print(f"{suite}: {len(ran - failed)} passed, {len(failed)} failed", flush=True)
    for name in sorted(failed & known.keys()):
        print(f"  as expected: {name}: {known[name]}")
    if "Run completed" not in text:
        return [f"{suite} did not complete:\n{(folder / f'{suite}.log').read_text()[-4000:]}"]
    details = dict(re.findall(r"^- (.*) \*\*\* FAILED \*\*\*.*\n((?: .*\n)*)", text, re.MULTILINE))
    return [f"{suite}: {name} failed:\n{details.get(name, '')}" for name in sorted(failed - known.keys())] + [
        f"{suite}: {name} does not fail" for name in sorted(known.keys() - failed)
    ]  # fmt: skip


if __name__ == "__main__":
    main()
