"""The page of a cluster of 1,000 workers that has run 10^6 tasks: its first paint, its scripts, its size.

    cargo build --release -p treadle-node-scheduler --example tasks_per_second
    python bench/sight/large.py [--workers 1000] [--tasks 1000000]

The scheduler and the page are real. The workers and the client are sockets of one more process, which says what real
ones say. While that runs, and after it, each view is opened in a headless Chromium. Build with `make PROFILE=release
build` first.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import itertools
import json
import statistics
import subprocess
import sys
import tempfile
import urllib.request
from contextlib import ExitStack
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "tests" / "docs"))


import browser
from processes import Cluster

PROGRAM = Path(__file__).parents[2] / "target" / "release" / "examples" / "tasks_per_second"
VIEWS = ("overview", "stream", "groups", "workers", "transfers")
# The page asks twice a second.
UPDATE = 0.5
UPDATES = 20
PAINTED = (
    "performance.getEntriesByType('paint').filter(one => one.name === 'first-contentful-paint')"
    ".map(one => one.startTime)[0] ?? null"
)


async def scripts(tab: browser.Browser) -> float:
    """Seconds for which scripts have run."""
    found = (await tab.send("Performance.getMetrics"))["metrics"]
    return float(next(one["value"] for one in found if one["name"] == "ScriptDuration"))


async def look(link: str, when: str) -> None:
    """Open each view, and print what it takes."""
    async with browser.Browser(browser.find() or "") as tab:
        await tab.send("Performance.enable")
        for view in VIEWS:
            await tab.open("about:blank")
            await tab.open(f"{link}#{view}")
            await asyncio.sleep(2)
            painted = await tab.evaluate(PAINTED)
            taken = [await scripts(tab)]
            for _ in range(UPDATES):
                await asyncio.sleep(UPDATE)
                taken.append(await scripts(tab))
            each = [1e3 * (after - before) for before, after in itertools.pairwise(taken)]
            row = {
                "view": view,
                "when": when,
                "first paint, ms": round(painted),
                "scripts an update, ms: median, most": [
                    round(statistics.median(each), 1),
                    round(max(each), 1),
                ],
                "errors": tab.wrong,
            }
            print(json.dumps(row), flush=True)


def sizes(link: str) -> dict[str, int]:
    """Bytes of what the page loads, and of the answers that it asks for, compressed."""
    base, _, query = link.partition("/?")
    told = {}
    for path in ("", "assets/page.js", "assets/page.css", "sight/overview"):
        request = urllib.request.Request(f"{base}/{path}?{query}")
        with urllib.request.urlopen(request, timeout=60) as answer:
            told[path or "index"] = len(gzip.compress(answer.read()))
    return told


async def run(workers: int, tasks: int) -> None:
    with tempfile.TemporaryDirectory() as folder, ExitStack() as stack:
        cluster = Cluster(Path(folder), stack, workers=0)
        about = json.loads(Path(cluster.file).read_text())
        command = [str(PROGRAM), "--crowd", about["address"], str(Path(folder, "secret")), str(workers), str(tasks)]  # fmt: skip
        crowd = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        stack.callback(crowd.wait)
        stack.callback(crowd.stdin.close)  # type: ignore[union-attr]
        assert crowd.stdout is not None
        assert crowd.stdout.readline() == "ready\n"
        assert await asyncio.to_thread(crowd.stdout.readline) == "done\n"
        await asyncio.sleep(3)
        print(json.dumps({"compressed bytes": sizes(cluster.link)}), flush=True)
        await look(cluster.link, "after it")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, default=1_000)
    parser.add_argument("--tasks", type=int, default=10**6)
    given = parser.parse_args()
    asyncio.run(run(given.workers, given.tasks))


if __name__ == "__main__":
    main()
