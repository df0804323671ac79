"""A coordinator's database with days of jobs in it, for tests of pages and for measuring."""

from __future__ import annotations

import math
import random
from typing import Any

import sqlalchemy as sa

from treadle.coordinator import _store, _tables
from treadle.coordinator._jobs import Job
from treadle.coordinator._tuning import Tuning
from treadle.coordinator._watching import History, Run

GB = 10**9


def fill(
    coordinator: Any, now: float, jobs: int, days: float, names: int = 500, seed: int = 1
) -> None:
    """Write as many jobs over so many days until now."""
    rng = random.Random(seed)
    pool = [
        Job(
            rng.choice(["batch-a", "batch-b"]), rng.choice(["etl", "reports", "adhoc"]), rng.choice(["ann", "bob", "olga", "svc-etl"]),
            f"{rng.choice(['daily', 'hourly', 'weekly'])} {rng.choice(['orders', 'clicks', 'billing', 'search', 'users'])} {'abcdefghij'[n % 10]}{'klmnopqrst'[n // 10 % 10]}{'uvwxyz'[n // 100 % 6]}",
        )
        for n in range(names)
    ]  # fmt: skip
    hours: dict[tuple[int, str], list[int]] = {}
    batch: list[dict[str, Any]] = []

    def write(rows: list[dict[str, Any]]) -> None:
        coordinator.database.write_now(lambda c: c.execute(_tables.jobs.insert(), rows), 120)

    for n in range(jobs):
        at = now - days * 86400 * (1 - n / jobs)
        base = pool[min(int(rng.expovariate(3) * names), names - 1)]
        verdict = rng.choices(["service", "stock", "unasked"], [6, 3, 1])[0]
        pushed = int(10 ** rng.gauss(9.5, 0.8))
        took = 60 * math.exp(rng.gauss(1.5, 0.8))
        state = "running" if now - at < took else "failed" if rng.random() < 0.01 else "finished"
        done = state != "running"
        batch.append({
            **base.to_dict(), "name": f"{base.name} {int(at)}", "version": "3.5.9", "id": f"app-{seed}-{n}", "at": at, "recurring": base.recurring,
            "verdict": verdict, "reason": {"service": "rule 'etl first' takes it (40 % of the recurring jobs)", "stock": "no rule takes it", "unasked": "nobody asked; its event log was read"}[verdict],
            "rule": 1, "rule_version": 1, "settings": {"spark.shuffle.manager": "io.treadle.spark.TreadleShuffleManager"} if verdict == "service" else {},
            "copies": 2 if verdict == "service" else 0, "change": 0, "predicted_bytes": int(pushed * rng.uniform(0.8, 1.4)) if verdict == "service" else None,
            "state": state, "ended": at + took if done else None, "duration": took if done else None, "shuffle_bytes": pushed if done else None,
            "blocked": took * rng.random() if done else None, "retries": 0 if done else None, "fallbacks": 0 if done else None, "lost_servers": 0 if done else None, "input_bytes": 3 * pushed if done else None,
        })  # fmt: skip
        sums = hours.setdefault((int(at // 3600), verdict), [0, 0, 0, 0, 0])
        for place, value in enumerate(
            (1, int(done), int(state == "failed"), int(rng.random() < 0.002), pushed if done else 0)
        ):
            sums[place] += value
        if len(batch) == 20_000:
            write(batch)
            batch = []
    if batch:
        write(batch)

    def rest(connection: sa.Connection) -> None:
        rows = [
            {
                "hour": hour,
                "verdict": verdict,
                **dict(zip(("jobs", "ended", "failed", "fell_back", "bytes"), sums, strict=True)),
            }
            for (hour, verdict), sums in hours.items()
        ]
        connection.execute(_tables.hours.insert(), rows)
        for at in range(0, names, 1):
            job = pool[at]
            history = History([Run(100.0 + n, GB, True) for n in range(60)])
            _store.keep_recurring(connection, job, history, Tuning(), now - at, jobs // names)

    coordinator.database.write_now(rest, 120)
