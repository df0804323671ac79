"""What ``treadle observe`` prints: at most 40 lines of a page's JSON."""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from typing import Any

from dask.utils import format_bytes

__all__ = ["lines", "part", "rows"]

_MOST = 40
_WIDEST = 160
# Lines of a traceback in a list, and of a task's.
_FEW = 4
_MANY = 16
# What each topic has of the overview.
_PARTS = {
    "workers": ("workers", "more_workers", "totals", "running"),
    "groups": ("groups", "more_groups"),
    "shuffles": ("shuffles", "more_shuffles"),
    "casts": ("casts", "more_casts"),
    "errors": ("errors", "more_errors"),
    "running": ("running", "more_running"),
    "memory": ("workers", "more_workers", "totals", "series"),
}


def part(found: dict[str, Any], topic: str) -> dict[str, Any]:
    """Return what of a page is about a topic."""
    names = _PARTS.get(topic)
    return found if names is None else {name: found[name] for name in names if name in found}


def lines(found: dict[str, Any], topic: str) -> list[str]:
    """Return a page as text; what is left out is counted in the last line."""
    return _cut(_TEXTS[topic](found))


def rows(names: Sequence[str], found: Sequence[Sequence[Any]]) -> list[str]:
    """Return a table of any columns as text."""
    shown = [[_cell(cell) for cell in row] for row in found[:_MOST]]
    more = [""] * (len(found) - len(shown))
    return _cut([*_table(names, shown), *more] if names else [])


def _cell(cell: Any) -> str | None:
    if cell is None:
        return None
    return f"{cell:.6g}" if isinstance(cell, float) else str(cell)


def _cut(text: Iterable[str]) -> list[str]:
    every = [_plain(line)[:_WIDEST] for line in text]
    if len(every) <= _MOST:
        return every
    return [*every[: _MOST - 1], f"… {len(every) - _MOST + 1} more lines: --json has all"]


def _plain(text: str) -> str:
    """Return a text that says nothing to a terminal but its characters."""
    return "".join(character if character.isprintable() else " " for character in text)


def _bytes(number: float | None) -> str:
    return "-" if number is None else format_bytes(int(number))


def _seconds(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    if seconds < 1e-3:
        return f"{seconds * 1e6:.0f} µs"
    return f"{seconds * 1e3:.1f} ms" if seconds < 1 else f"{seconds:.1f} s"


def _share(part: float | None) -> str:
    return "-" if part is None else f"{part:.0%}"


def _table(head: Sequence[str], rows: Sequence[Sequence[Any]], widest: int = 40) -> Iterator[str]:
    """Yield the lines of a table; the first column is text."""
    cells = [head, *([("-" if cell is None else str(cell)) for cell in row] for row in rows)]
    cells = [
        [cell if len(cell) <= widest else f"{cell[: widest - 1]}…" for cell in row] for row in cells
    ]
    widths = [max(len(row[column]) for row in cells) for column in range(len(head))]
    for row in cells:
        first = row[0].ljust(widths[0])
        others = (cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True))
        yield "  ".join((first, *others)).rstrip()


def _service(found: dict[str, Any]) -> Iterator[str]:
    """Yield what a process of the shuffle service says of itself."""
    cluster, service = found["cluster"], found["service"]
    yield f"shuffle {service['role']} at {cluster['address']}, treadle {cluster['treadle']}, {found['now'] / 1e9:.0f} s"
    yield from (_master if service["role"] == "master" else _server)(service)


def _master(service: dict[str, Any]) -> Iterator[str]:
    if service["registry"] is not None:
        registry = service["registry"]
        why = "" if registry["current"] else f" (away: {registry['why'] or 'it does not answer'})"
        yield f"registry: {registry['url']}{why}"
    yield f"{service['clients']} processes of applications"
    yield ""
    head = ("server", "held", "free", "partitions", "takes", "waiting", "weight", "share", "state")
    rows: list[Sequence[Any]] = [
        (
            one["name"],
            _bytes(one["held_bytes"]),
            _bytes(one["free_bytes"]),
            one["partitions"],
            f"{_bytes(one['rate'])}/s",
            one["waiting_requests"],
            one["weight"],
            one["share"],
            ", ".join(name for name in ("leaving", "full", "slow") if one[name]) or "takes rows",
        )
        for one in service["servers"][:14]
    ]
    yield from _table(head, rows)
    yield from _rest(len(service["servers"]) - len(rows) + service["more_servers"], "servers")
    yield ""
    head = ("shuffle", "application", "state", "bytes", "partitions", "largest", "again", "troubles", "seconds")  # fmt: skip
    shown = [*service["running"], *service["ended"]]
    rows = [
        (
            one.get("name"),
            str(one.get("application"))[:8],
            one.get("phase") if one.get("state") == "running" else one.get("state"),
            _bytes(one.get("bytes")),
            one.get("partitions"),
            _bytes(one.get("largest")),
            one.get("repeated"),
            len(one["troubles"]) + (one.get("more_troubles") or 0),
            _seconds(sum((one.get("seconds") or {}).values())),
        )
        for one in shown[:14]
    ]
    if rows:
        yield from _table(head, rows)
    else:
        yield "no shuffle has begun"
    yield from _rest(len(shown) - len(rows) + service["more_running"], "shuffles")


def _rest(count: int, of: str) -> Iterator[str]:
    if count > 0:
        yield f"and {count} {of} more"


def _server(service: dict[str, Any]) -> Iterator[str]:
    counts = service["counts"]
    state = "leaving" if service["leaving"] else "takes rows"
    yield f"{service['name']} ({state}), registered at {service['registry']}, with {service['masters']} masters"
    if service["not_registered"]:
        yield f"NOT REGISTERED: {service['not_registered']}"
    yield (
        f"rows: {_bytes(counts['held_bytes'])} in memory, {_bytes(counts['disk_bytes'])} on disks, "
        f"{_bytes(counts['remote_bytes'])} remote; the process may take {_bytes(service['memory_limit'])}"
    )
    yield f"takes {_bytes(counts['intake_bytes_per_second'])}/s; {counts['reads_total']} reads, {counts['throttled_reads_total']} throttled"
    yield ""
    head = ("disk", "reads", "writes", "a read takes", "waiting", "failures", "state")
    rows = [
        (
            ", ".join(one["directories"]),
            f"{_bytes(one['read_bytes_per_second'])}/s",
            f"{_bytes(one['write_bytes_per_second'])}/s",
            _seconds(one["read_latency_seconds"]),
            one["waiting"],
            one["failures"],
            ", ".join(name for name in ("full", "slow", "throttling") if one[name]) or "well",
        )
        for one in service["devices"]
    ]
    yield from _table(head, rows)


def _overview(found: dict[str, Any]) -> Iterator[str]:
    if found.get("service"):
        yield from _service(found)
        return
    cluster, tasks, spans = found["cluster"], found.get("tasks"), found["spans"]
    state = "live" if found["live"] else "history"
    yield f"{cluster['address']} ({state}), treadle {cluster['treadle']}, {found['now'] / 1e9:.0f} s"
    if tasks is not None:
        yield "tasks: " + ", ".join(f"{count} {name}" for name, count in tasks.items())
    yield f"rate: {found['rate']:.0f} tasks/s"
    totals = found["totals"]
    limit = f" of {_bytes(totals['memory_limit'])}" if totals.get("memory_limit") else ""
    yield (
        f"workers: {totals['workers']} with {totals['threads']} threads, {totals['paused']} paused, "
        f"{totals['gone']} gone; {_bytes(totals.get('process'))}{limit} of memory, "
        f"{_bytes(totals.get('spilled'))} on disk"
    )
    yield (
        f"spans: {spans['kept']} kept in {_bytes(spans['bytes'])} of {_bytes(spans['limit'])}, "
        f"{spans['older']} older ones in sums only, {spans['lost']} lost at workers, "
        f"{spans['dropped']} batches dropped"
    )
    if found.get("history"):
        yield f"history: {_history(found['history'])}"
    yield f"latest errors: {len(found['errors'])}, events: {len(found['events'])}"
    yield ""
    for verdict in found["verdicts"]:
        yield f"{verdict['severity'].upper()} [{verdict['rule']}] {verdict['text']}"
    if not found["verdicts"]:
        yield "nothing is wrong that this would see"
    # A run that is over has no now.
    for verdict in found["earlier"][:8]:
        times = f"{verdict['first'] / 1e9:.0f} to {verdict['last'] / 1e9:.0f} s"
        yield f"earlier, {times}: {verdict['severity'].upper()} [{verdict['rule']}] {verdict['text']}"
    yield from _rest(len(found["earlier"]) - 8, "earlier ones")
    yield ""
    yield from islice(_groups(found), 11)
    for event in found["events"][:8]:
        yield f"{event['time'] / 1e9:8.1f} s  {event['kind']} {event['worker']}: {event['text']}"


def _history(about: dict[str, Any]) -> str:
    limit = f" of {_bytes(about['limit'])}" if about.get("limit") else ""
    why = f": {about['error']}" if about.get("error") else ""
    return f"{_bytes(about['bytes'])}{limit}, {about['state']}{why}"


def _groups(found: dict[str, Any]) -> Iterator[str]:
    head = (
        "group",
        "tasks",
        "waiting",
        "queued",
        "at workers",
        "memory",
        "released",
        "runs",
        "failed",
        "mean",
        "max",
        "computed",
        "reading inputs",
        "bytes",
        "depends on",
    )
    names = {one["id"]: one["name"] for one in found["groups"]}
    rows = [
        (
            one["name"],
            one.get("total"),
            *(one.get(name) for name in ("waiting", "ready", "assigned", "memory", "released")),
            one["runs"],
            one["failed"],
            _seconds(one["mean"]),
            _seconds(one["max"]),
            _seconds(one["seconds"]),
            _seconds(one["fetch_seconds"]),
            _bytes(one["bytes"]),
            ", ".join(names.get(number, "?") for number in one["inputs"]) or None,
        )
        for one in found["groups"]
    ]
    yield from _table(head, rows)
    if found.get("more_groups"):
        yield f"and {found['more_groups']} groups more"


def _workers(found: dict[str, Any]) -> Iterator[str]:
    head = ("worker", "status", "busy", "cpu", "tasks", "memory", "spilled", "disk/s", "network/s", "stalled", "sent", "received")  # fmt: skip
    rows = [
        (
            one["name"],
            one["status"],
            _share(one.get("busy")),
            None if one.get("cpu") is None else f"{one['cpu']:.1f}",
            one.get("tasks"),
            f"{_bytes(one.get('process'))}/{_bytes(one.get('memory_limit'))}",
            _bytes(one.get("spilled")),
            _both(one, "disk_read", "disk_written"),
            _both(one, "net_received", "net_sent"),
            _stalled(one),
            _bytes(one["sent"]),
            _bytes(one["received"]),
        )
        for one in found["workers"]
    ]
    yield from _table(head, rows)
    if found.get("more_workers"):
        yield f"and {found['more_workers']} workers more"
    for one in found["workers"]:
        if one.get("why"):
            yield f"{one['name']}: {one['why']}"
    for one in found["running"][:5]:
        yield _runs(one, found["now"])


def _both(one: dict[str, Any], *names: str) -> str | None:
    """Return the sum of two rates."""
    known = [one[name] for name in names if one.get(name) is not None]
    return _bytes(int(sum(known))) if known else None


def _stalled(one: dict[str, Any]) -> str | None:
    """Return what a worker's machine waited for most, and for which share of the time."""
    shares = zip(one.get("stalled") or (), ("processors", "memory", "disks"), strict=False)
    most, what = max(((share or 0.0, what) for share, what in shares), default=(None, ""))
    return None if most is None else f"{_share(most)} {what if most else ''}".strip()


def _runs(one: dict[str, Any], now: int) -> str:
    took = _seconds((now - one["from"]) / 1e9)
    return f"{one['key']} has run for {took} at {one['worker']}"


def _running(found: dict[str, Any]) -> Iterator[str]:
    if not found["running"]:
        yield "no task has run for a second"
    for one in found["running"]:
        yield _runs(one, found["now"])
    if found["more_running"]:
        yield f"and {found['more_running']} more"


def _memory(found: dict[str, Any]) -> Iterator[str]:
    head = ("worker", "values", "native", "process", "limit", "spilled", "objects")
    workers = [one for one in found["workers"] if one["status"] != "gone"]
    workers.sort(key=lambda one: -(one.get("process") or 0))
    rows = [
        (
            one["name"],
            *(
                _bytes(one.get(name))
                for name in ("managed", "native", "process", "memory_limit", "spilled")
            ),
            one.get("values"),
        )
        for one in workers
    ]
    yield from _table(head, rows)
    series = found["series"]
    for name in ("managed", "process", "spilled"):
        values = series["values"][series["names"].index(name)]
        unit = "/s to disk or back" if name == "spilled" else ""
        yield f"{name}: at most {_bytes(max(values, default=0))}{unit} in the last {len(values)} s"


def _transfers(found: dict[str, Any]) -> Iterator[str]:
    pairs = [
        (
            f"{found['names'][one]} → {found['names'][other]}",
            _bytes(nbytes),
            found["count"][one][other],
            _seconds(found["seconds"][one][other]),
            f"{_bytes(nbytes / found['seconds'][one][other])}/s"
            if found["seconds"][one][other]
            else None,
            found["failed"][one][other],
            nbytes,
        )
        for one, row in enumerate(found["bytes"])
        for other, nbytes in enumerate(row)
        if found["count"][one][other]
    ]
    pairs.sort(key=lambda pair: -pair[-1])
    if not pairs and not found["beyond"]:
        yield "no value went from one worker to another"
        return
    head = ("from → to", "bytes", "values", "time", "rate", "failed")
    yield from _table(head, [pair[:-1] for pair in pairs])
    if found["more"]:
        yield f"and {found['more']} workers more"
    if found["beyond"]:
        nbytes = _bytes(found["beyond_bytes"])
        yield f"{found['beyond']} values ({nbytes}) of other pairs are not told apart"


def _shuffles(found: dict[str, Any]) -> Iterator[str]:
    if not found["shuffles"]:
        yield "no shuffle was seen"
        return
    head = (
        *("shuffle", "state", "transferred", "bytes", "partitions", "median", "largest"),
        *("servers", "lost"),
    )
    rows = [
        (
            one["name"],
            one["state"],
            f"{one['transferred']}/{one['inputs']}",
            _bytes(one["bytes"]),
            one["partitions"],
            _bytes(dict(one.get("quantiles", [])).get(50)),
            _bytes(one.get("largest")),
            one["servers"],
            one["losses"],
        )
        for one in found["shuffles"]
    ]
    yield from _table(head, rows)
    yield from _rest(found["more_shuffles"], "shuffles")


def _casts(found: dict[str, Any]) -> Iterator[str]:
    if not found["casts"]:
        yield "nothing was sent to many workers at once"
        return
    head = ("cast", "for", "state", "workers", "size", "on its way", "rate", "took")
    rows = [
        (
            f"{one['client']}.{one['number']}",
            one.get("what"),
            f"at {one['running']}" if one["running"] else "done",
            one["receivers"],
            _bytes(one.get("bytes")),
            _seconds(one.get("given_seconds")),
            None if one.get("rate") is None else f"{_bytes(one['rate'])}/s",
            _seconds(one["seconds"]),
        )
        for one in found["casts"]
    ]
    yield from _table(head, rows)
    if found["more_casts"]:
        yield f"and {found['more_casts']} casts before them"


def _errors(found: dict[str, Any]) -> Iterator[str]:
    if not found["errors"]:
        yield "no task raised"
    for one in found["errors"]:
        count = f"{one['count']} × " if one["count"] > 1 else ""
        where = f" at {one['worker']}" if one["worker"] else ""
        yield f"{one['time'] / 1e9:8.1f} s  {count}{one['key']}{where}: {one['text']}"
        yield from _traceback(one.get("traceback"), _FEW)
    if found["more_errors"]:
        yield f"and {found['more_errors']} runs that raised, of which no text is kept"


def _traceback(text: str | None, most: int) -> Iterator[str]:
    """Yield the last lines of a traceback."""
    shown = (text or "").rstrip().splitlines()
    if len(shown) > most:
        yield f"    … {len(shown) - most} lines before"
    for line in shown[-most:]:
        yield f"    {line}"


def _logs(found: dict[str, Any]) -> Iterator[str]:
    if not found["lines"]:
        yield "no such line of a log is kept"
    for one in found["lines"]:
        text = one["text"].replace("\n", " ⏎ ")
        yield f"{one['time'] / 1e9:8.1f} s  {one['worker']} {one['level'].lower()}: {text}"
    if found["more"] or found["lost"]:
        yield "older ones are not shown"


def _profile(found: dict[str, Any]) -> Iterator[str]:
    """Yield functions by the time that threads spent in themselves, and not in what they called."""
    names, nodes = found["names"], found["nodes"]
    own = [node[2] for node in nodes]
    for parent, _, took in nodes:
        if parent >= 0:
            own[parent] -= took
    sums: dict[str, list[float]] = {}
    for (_, name, took), self in zip(nodes, own, strict=True):
        entry = sums.setdefault(names[name], [0.0, 0.0])
        entry[0] += self
        entry[1] = max(entry[1], took)
    rows = sorted(sums.items(), key=lambda row: -row[1][0])
    whole = nodes[0][2] if nodes else 0
    if not whole:
        yield "no task was seen while it ran"
        return
    shown = [(name, _share(self / whole), _seconds(self)) for name, (self, _) in rows if self > 0]
    yield from _table(("function", "of all", "in itself"), shown, 100)


def _task(found: dict[str, Any]) -> Iterator[str]:
    yield f"{found['key']}: {found['state']}" + (
        f" at {', '.join(found['workers'])}" if found["workers"] else ""
    )
    if found.get("inputs"):
        yield f"reads {', '.join(found['inputs'])}"
    if found.get("error"):
        yield f"raised {found['error']}"
        yield from _traceback(found.get("traceback"), _MANY)
    for step in found["story"]:
        at = time.strftime("%H:%M:%S", time.localtime(step["time"]))
        where = f" at {step['worker']}" if step.get("worker") else ""
        yield f"{at}.{int(step['time'] * 1000) % 1000:03}  {step['state']}{where}"
    for span in found["spans"]:
        took = _seconds((span["to"] - span["from"]) / 1e9)
        read = _seconds((span["read"] - span["from"]) / 1e9)
        outcome = "" if span["ok"] else ", failed"
        yield (
            f"{span['from'] / 1e9:8.3f} s  {span['kind']} at {span['worker']}: {took}, "
            f"of them {read} for inputs, {_bytes(span['bytes'])}{outcome}"
        )
    if found.get("log"):
        yield "its worker's log of that time:"
        yield from _logs({"lines": found["log"], "more": False, "lost": 0})


_TEXTS = {
    "overview": _overview,
    "workers": _workers,
    "groups": _groups,
    "transfers": _transfers,
    "shuffles": _shuffles,
    "casts": _casts,
    "errors": _errors,
    "running": _running,
    "logs": _logs,
    "profile": _profile,
    "memory": _memory,
    "task": _task,
}
