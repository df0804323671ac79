"""What came after a moment, of sums over the whole run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

__all__ = ["since"]

_SECOND = 10**9
_OF_GROUPS = ("total", "failed", "runs", "seconds", "fetch_seconds", "bytes")
_OF_WORKERS = ("sent", "received", "lost")
_OF_PAIRS = ("bytes", "seconds", "waiting_seconds", "count", "failed")


def since(before: Mapping[str, Any], after: Mapping[str, Any]) -> dict[str, Any]:
    """Return the answers ``after``, about what came after those ``before``.

    What cannot be told apart, such as the median of a group that had runs before, is left out. Verdicts stay: they are
    about the last minute, or all of the run. The profile stays, too: it is asked for from that moment on.
    """
    old, new = before["sight/overview"], dict(after["sight/overview"])
    begin = old["now"]
    known = {group["id"]: group for group in old["groups"]}
    groups = [_group(known.get(group["id"], {}), group, begin) for group in new["groups"]]
    new["groups"] = [group for group in groups if group["runs"] or group.get("total")]
    known = {worker["id"]: worker for worker in old["workers"]}
    new["workers"] = [_less(known.get(one["id"], {}), one, _OF_WORKERS) for one in new["workers"]]
    for name in ("errors", "events"):
        new[name] = [one for one in new[name] if one["time"] > begin]
    for name in ("series", "whole"):
        new[name] = _series(new[name], begin)
    new["spans"] = {**new["spans"], "from": max(new["spans"]["from"], begin)}
    new["spans"]["to"] = max(new["spans"]["to"], begin)
    earlier = old.get("shuffles", [])
    new["shuffles"] = [one for one in new.get("shuffles", []) if one not in earlier]
    casts = new.get("casts", [])
    new["casts"] = [one for one in casts if one["from"] > begin]
    # Of those that are not shown nobody knows when they were.
    passed = new.get("more_casts", 0) - old.get("more_casts", 0)
    new["more_casts"] = max(0, passed) if len(new["casts"]) == len(casts) else 0
    found = {**after, "sight/overview": new}
    if "sight/transfers" in after:
        found["sight/transfers"] = _transfers(
            before.get("sight/transfers", {}), after["sight/transfers"]
        )
    if "sight/logs" in after:
        found["sight/logs"] = _logs(before.get("sight/logs", {}), after["sight/logs"], begin)
    return found


def _logs(old: Mapping[str, Any], new: Mapping[str, Any], begin: int) -> dict[str, Any]:
    lines = [line for line in new["lines"] if line["time"] > begin]
    # The latest are known: where one of them is from before, so are all older ones.
    more = new["more"] and len(lines) == len(new["lines"])
    return {"lines": lines, "more": more, "lost": max(0, new["lost"] - old.get("lost", 0))}


def _less(old: Mapping[str, Any], new: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    less = {name: max(0, new[name] - (old.get(name) or 0)) for name in names if name in new}
    return {**new, **less}


def _group(old: Mapping[str, Any], new: Mapping[str, Any], begin: int) -> dict[str, Any]:
    group = _less(old, new, _OF_GROUPS)
    if old.get("runs"):
        group["mean"] = group["seconds"] / group["runs"] if group["runs"] else 0.0
        del group["median"]
        if new["max"] == old["max"]:
            del group["max"]
    group["from"] = max(group["from"], begin)
    return group


def _series(series: Mapping[str, Any], begin: int) -> dict[str, Any]:
    """The steps that are not over at a time."""
    passed = (series["to"] - begin) / _SECOND / (series["step"] or 1)
    kept = max(1, math.ceil(passed))
    return {**series, "values": [row[-kept:] for row in series["values"]]}


def _transfers(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    rows = {worker: row for row, worker in enumerate(old.get("workers", []))}
    found = dict(new)
    for name in _OF_PAIRS:
        if name not in new:
            continue
        table = [list(row) for row in new[name]]
        for at, one in enumerate(new["workers"]):
            for to, other in enumerate(new["workers"]):
                if one in rows and other in rows:
                    known = old[name][rows[one]][rows[other]]
                    table[at][to] = max(0, table[at][to] - known)
        found[name] = table
    return found
