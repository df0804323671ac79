"""The pictures of the scaling report: each workload's duration, speed-up and rate over cores, and three overviews.

``python bench/scaling/plots.py FILE`` draws them anew from what ``run.py`` has written.
"""

from __future__ import annotations

import json
import statistics
import sys
from pathlib import Path
from typing import Any

from workloads import ALL, GROUPS

COLOURS = {"treadle": "tab:blue", "distributed": "tab:orange"}
# The report's table of expert settings.
EXPERT = (
    "tasks-100ms",
    "array-elementwise",
    "frame-arithmetic",
    "array-rechunk",
    "frame-set-index",
)


def rate(point: dict[str, Any]) -> float:
    """Tasks or megabytes a second."""
    amount: float = point["amount"] / point["seconds"]
    return amount if point["unit"] == "tasks" else amount / 1e6


def lines(
    result: dict[str, Any], name: str, expert: bool = False
) -> dict[str, list[dict[str, Any]]]:
    """The points of a workload by engine, in the order of cores."""
    found: dict[str, list[dict[str, Any]]] = {}
    for point in sorted(result["points"], key=lambda point: point["cores"]):
        if point["workload"] == name and point["expert"] == expert:
            found.setdefault(point["engine"], []).append(point)
    return found


def table(result: dict[str, Any]) -> list[str]:
    """Treadle beside distributed where both have a point: how many times as fast, by workload."""
    rows = [
        "| workload | workers | treadle | distributed | ratio |",
        "| --- | --- | --- | --- | --- |",
    ]
    ratios: dict[str, list[float]] = {}
    for name in ALL:
        for expert in (False, True):
            found = lines(result, name, expert)
            theirs = {point["cores"]: point for point in found.get("distributed", [])}
            for point in found.get("treadle", []):
                if other := theirs.get(point["cores"]):
                    ratio = other["seconds"] / point["seconds"]
                    size = f"{point['workers']} workers{', expert' if expert else ''}"
                    ratios.setdefault(size, []).append(ratio)
                    rows.append(
                        f"| {name}{', expert' if expert else ''} | {point['workers']} | {point['seconds']:.4g} s | "
                        f"{other['seconds']:.4g} s | {ratio:.2f} × |"
                    )
    rows.append("")
    for size, some in ratios.items():
        mean = statistics.geometric_mean(some)
        rows.append(
            f"- {size}: geometric mean of {len(some)} ratios {mean:.2f} ×, lowest {min(some):.2f} ×"
        )
    return rows + expert_table(result)


def expert_table(result: dict[str, Any]) -> list[str]:
    """The report's table: small chunks and workers, and large ones with as many cores."""
    rows = []
    for name in EXPERT:
        for engine in COLOURS:
            small = {point["cores"]: point for point in lines(result, name).get(engine, [])}
            for large in lines(result, name, expert=True).get(engine, []):
                if beside := small.get(large["cores"]):
                    unit = "tasks/s" if large["unit"] == "tasks" else "MB/s"
                    rows.append(
                        f"| {ALL[name].title}, {engine} | {large['cores']} | {rate(beside):,.0f} | "
                        f"{rate(large):,.0f} | {unit} |"
                    )
    head = ["", "| benchmark | cores | small | large | unit |", "| --- | --- | --- | --- | --- |"]
    return [*head, *rows] if rows else []


def _plot(axes: Any, points: list[dict[str, Any]], values: list[float], **style: Any) -> None:
    cores = [point["cores"] for point in points]
    (line,) = axes.plot(cores, values, **style)
    for point, value in zip(points, values, strict=True):
        fill = "white" if point["oversubscribed"] else line.get_color()
        axes.plot(
            point["cores"], value, "o", color=line.get_color(), markerfacecolor=fill, markersize=5
        )


def _scale(axes: Any, scale: str, label: str) -> None:
    axes.set(yscale=scale, xlabel="cores (threads of workers)", ylabel=label)
    if scale == "log":
        axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.grid(alpha=0.3)


def _simulated(axes: Any, points: list[dict[str, Any]], label: str, rates: list[float]) -> None:
    """Points of the calibrated simulation, with how far they are off where there is a real one."""
    errors = [abs(point["error"]) for point in points if point["error"] is not None]
    told = f", off by {max(errors):.0%} at most" if errors else ""
    cores = [point["workers"] * 2 for point in points]
    values = {
        "seconds": [point["seconds"] for point in points],
        "speed-up": [rate / rates[0] for rate in rates],
    }.get(label, rates)
    axes.plot(cores, values, "x:", color="grey", markersize=6, label=f"simulated{told}")


def of_workload(result: dict[str, Any], name: str) -> Any:
    """The figure of a workload: seconds, speed-up and rate over cores; None where it has no points."""
    import matplotlib.pyplot as plt

    found, workload = lines(result, name), ALL[name]
    if not found:
        return None
    unit = "tasks/s" if workload.unit == "tasks" else "MB/s"
    simulated = [one for one in result.get("simulated", []) if one["workload"] == name]
    figure, parts = plt.subplots(2, 3, figsize=(13, 7.5), layout="constrained")
    for row, scale in zip(parts, ("linear", "log"), strict=True):
        for axes, label in zip(row, ("seconds", "speed-up", unit), strict=True):
            for engine, points in found.items():
                rates = [rate(point) for point in points]
                values = {
                    "seconds": [point["seconds"] for point in points],
                    "speed-up": [one / rates[0] for one in rates],
                }.get(label, rates)
                _plot(axes, points, values, color=COLOURS[engine], label=engine)
            if simulated:
                rates = [point["tasks"] / point["seconds"] for point in simulated]
                _simulated(axes, simulated, label, rates)
            _scale(axes, scale, label)
    parts[0][0].legend(frameon=False)
    figure.suptitle(f"{name}: {workload.title} (hollow: more threads than cores here)")
    return figure


def complete(result: dict[str, Any], group: str) -> Any:
    """The report's overview of a group: most of its lines in one figure; None where there are no points.

    Random access is left out, as it moves a few bytes.
    """
    import matplotlib.pyplot as plt

    shown = [
        (name, workload)
        for name, workload in GROUPS[group].items()
        if lines(result, name) and name not in ("array-element", "frame-loc")
    ]
    if not shown:
        return None
    figure, parts = plt.subplots(ncols=2, figsize=(13, 6), layout="constrained")
    colours = plt.colormaps["tab10"]
    for place, (name, workload) in enumerate(shown):
        for engine, style in (("treadle", "-"), ("distributed", ":")):
            points = lines(result, name).get(engine, [])
            for axes in parts:
                if points:
                    label = workload.title if engine == "treadle" else None
                    values = [rate(point) for point in points]
                    style_ = {"color": colours(place), "linestyle": style, "label": label}
                    _plot(axes, points, values, **style_)
    for axes, scale in zip(parts, ("linear", "log"), strict=True):
        _scale(axes, scale, "tasks/s" if group == "tasks" else "MB/s")
    parts[1].legend(frameon=False, fontsize=8)
    figure.suptitle(f"{group}: complete (Treadle solid, distributed dotted)")
    return figure


def read(path: Path) -> dict[str, Any]:
    """What ``run.py`` has written, with the points that ``simulated.py`` has written beside it, if any."""
    result: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    simulated = path.with_name("simulated.json")
    if simulated.exists():
        result["simulated"] = json.loads(simulated.read_text(encoding="utf-8"))["points"]
    return result


def draw(result: dict[str, Any], to: Path) -> None:
    """Draw a picture for each workload that has points, and the overviews."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    pictures = [(name, of_workload, name) for name in ALL]
    pictures += [(f"{group}-complete", complete, group) for group in GROUPS]
    for name, make, what in pictures:
        figure = make(result, what)
        if figure is not None:
            figure.savefig(to / f"{name}.png", dpi=90)
            plt.close(figure)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    drawn = read(path)
    draw(drawn, path.parent)
    print("\n".join(table(drawn)))
