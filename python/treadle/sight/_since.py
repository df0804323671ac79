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

    What cannot be told apart, such as the median of a group that had runs before, is left out, and counted where there
    is a number for that. Verdicts are those that say what they did not say before, or were spoken since. The profile
    stays: it is asked for from that moment on.
    """
    old, new = before["sight/overview"], dict(after["sight/overview"])
    begin = old["now"]
    known = {group["id"]: group for group in old["groups"]}
    # Of a group that was not among those before, and is older, nobody knows what it had.
    told = [one for one in new["groups"] if one["id"] in known or _is_new(old, one, begin)]
    new["more_groups"] = new.get("more_groups", 0) + len(new["groups"]) - len(told)
    groups = [_group(known.get(group["id"], {}), group, begin) for group in told]
    new["groups"] = [group for group in groups if group["runs"] or group.get("total")]
    known = {worker["id"]: worker for worker in old["workers"]}
    if old.get("more_workers"):
        new["workers"] = [
            one if one["id"] in known else _without(one, _OF_WORKERS) for one in new["workers"]
        ]
    new["workers"] = [_less(known.get(one["id"], {}), one, _OF_WORKERS) for one in new["workers"]]
    new["errors"] = _errors(old["errors"], new["errors"], begin)
    new["events"] = [one for one in new["events"] if one["time"] > begin]
    new["more_errors"] = max(0, new.get("more_errors", 0) - old.get("more_errors", 0))
    said = {(one["rule"], one["text"]) for one in old.get("verdicts", [])}
    new["verdicts"] = [
        one for one in new.get("verdicts", []) if (one["rule"], one["text"]) not in said
    ]
    new["earlier"] = [one for one in new.get("earlier", []) if one["last"] > begin]
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
    if "sight/errors" in after:
        earlier = before.get("sight/errors", {}).get("errors", [])
        errors = _errors(earlier, after["sight/errors"]["errors"], begin)
        found["sight/errors"] = {"errors": errors, "more_errors": new["more_errors"]}
    if "sight/logs" in after:
        found["sight/logs"] = _logs(before.get("sight/logs", {}), after["sight/logs"], begin)
    return found


def _is_new(old: Mapping[str, Any], group: Mapping[str, Any], begin: int) -> bool:
    """Whether a group that is not among those before had nothing then."""
    return not old.get("more_groups") or group["from"] > begin


def _without(row: Mapping[str, Any], names: Sequence[str]) -> dict[str, Any]:
    return {name: value for name, value in row.items() if name not in names}


def _errors(
    old: Sequence[Mapping[str, Any]], new: Sequence[Mapping[str, Any]], begin: int
) -> list[dict[str, Any]]:
    """Return errors of what came after a moment, each with how often it came since."""

    def name(error: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(error.get(part) for part in ("raised", "group", "text"))

    known = {name(error): error for error in old}
    later = [error for error in new if error["time"] > begin]
    return [_less(known.get(name(error), {}), error, ("count",)) for error in later]


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
    # A worker that had no row before had no transfers, unless some were left out.
    kept = [at for at, worker in enumerate(new["workers"]) if worker in rows or not old.get("more")]
    found = dict(new)
    for name in ("workers", "names"):
        if name in new:
            found[name] = [new[name][at] for at in kept]
    found["more"] = new.get("more", 0) + len(new["workers"]) - len(kept)
    for name in ("beyond", "beyond_bytes"):
        if name in new:
            found[name] = max(0, new[name] - old.get(name, 0))
    at_first = [rows.get(worker) for worker in found["workers"]]
    for name in _OF_PAIRS:
        if name not in new:
            continue
        known = old.get(name, [])
        table = [[new[name][one][other] for other in kept] for one in kept]
        for row, one in zip(table, at_first, strict=True):
            for place, other in enumerate(at_first):
                if one is not None and other is not None:
                    row[place] = max(0, row[place] - known[one][other])
        found[name] = table
    return found
