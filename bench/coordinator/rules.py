"""Count what the rules of diagnosis name in event logs with a planted cause, and in healthy ones.

``python bench/coordinator/rules.py [-v]``. The logs are those of ``tests/coordinator``: recorded from real Spark, but for
two causes that are made of recorded ones (``planted.py``). Dask's are reports of real runs.
Beside it stand the rules of DataFlint (https://github.com/dataflint/spark, commit edd32070), with the thresholds that its
page has, as far as an event log has what they look at: its rules on the memory of executors, on filters and on files of
a table need metrics that it takes from a running application.
"""

from __future__ import annotations

import sys
from collections import Counter, defaultdict
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "coordinator"))

from planted import healthy, planted
from treadle.coordinator._diagnosis import diagnose
from treadle.coordinator._measures import Application

_MiB, _GiB = 2**20, 2**30
# DataFlint's names of causes that it has a rule for.
DATAFLINT = {
    "large-partitions": "large partition size",
    "skew": "partition skew",
    "many-tasks": "large number of small tasks",
    "idle": "idle cores too high",
    "broadcast": "broadcast small table",
}


def dataflint(app: Application) -> set[str]:
    """Return the names of DataFlint's alerts, by its thresholds."""
    found = set()
    for stage in app.stages:
        if max(stage.task_read.largest, stage.task_input.largest) > 5 * _GiB:
            found.add("large partition size")
        longest, median = stage.task_run.largest, stage.task_run.median
        if longest > 5 and median and longest / median > 10:
            found.add("partition skew")
        if stage.tasks > 5000 and median < 0.5:
            found.add("large number of small tasks")
    busy = sum(one.run for one in app.stages)
    if app.core_seconds and busy < 0.5 * app.core_seconds:
        found.add("idle cores too high")
    sides = sorted(one.shuffle_written for one in app.stages if one.shuffle_written)
    if app.joins.get("SortMergeJoin") and len(sides) > 1:
        small, large = sides[0], sides[-1]
        limits = ((10 * _MiB, 0), (100 * _MiB, 10 * _GiB), (1000 * _MiB, 300 * _GiB))
        if any(small < one and large > other for one, other in limits):
            found.add("broadcast small table")
    return found


def main() -> None:
    is_told = "-v" in sys.argv
    logs: Counter[str] = Counter()
    named: Counter[str] = Counter()
    theirs: Counter[str] = Counter()
    others: defaultdict[str, set[str]] = defaultdict(set)
    rules = {}
    for cause, rule, follows, app in planted():
        found = {one.rule for one in diagnose(app)}
        rules[cause] = rule
        logs[cause] += 1
        named[cause] += rule in found
        theirs[cause] += DATAFLINT.get(cause) in dataflint(app)
        others[cause] |= found - {rule} - follows
        if is_told:
            print(f"    {app.name:32} {', '.join(sorted(found))}")
    print(f"{'planted':26}{'rule':28}{'named':>6}{'DataFlint':>11}  besides")
    for cause, count in logs.items():
        here = f"{theirs[cause]}/{count}" if cause in DATAFLINT else "-"
        besides = ", ".join(sorted(others[cause]))
        print(f"{cause:26}{rules[cause]:28}{f'{named[cause]}/{count}':>6}{here:>11}  {besides}")
    wrong, theirs_wrong, total = [], 0, 0
    for name, app in healthy():
        total += 1
        theirs_wrong += bool(dataflint(app))
        if found := {one.rule for one in diagnose(app)}:
            wrong.append(f"{name}: {', '.join(found)}")
    known = [cause for cause in logs if cause in DATAFLINT]
    share = 100 * sum(named.values()) / sum(logs.values())
    here = f"{sum(theirs[one] for one in known)} of {sum(logs[one] for one in known)}"
    print(f"{len(logs)} causes, {sum(logs.values())} runs: {share:.0f} % named")
    print(f"DataFlint's rules name {here}, of the causes that they are about")
    print(f"{total} healthy runs: {len(wrong)} with a finding, DataFlint's rules {theirs_wrong}")
    for one in wrong:
        print(f"    {one}")


if __name__ == "__main__":
    main()
