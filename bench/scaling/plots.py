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
    rows, ratios = (
        [
            "| workload | workers | treadle | distributed | ratio |",
            "| --- | --- | --- | --- | --- |",
        ],
        [],
    )
    for name in ALL:
        for expert in (False, True):
            found = lines(result, name, expert)
            theirs = {point["workers"]: point for point in found.get("distributed", [])}
            for point in found.get("treadle", []):
                if other := theirs.get(point["workers"]):
                    ratios.append(other["seconds"] / point["seconds"])
                    rows.append(
                        f"| {name}{', expert' if expert else ''} | {point['workers']} | {point['seconds']:.4g} s | "
                        f"{other['seconds']:.4g} s | {ratios[-1]:.2f} × |"
                    )
    if ratios:
        rows += [
            "",
            f"geometric mean of {len(ratios)} ratios: {statistics.geometric_mean(ratios):.2f} ×",
        ]
    rows += expert_table(result)
    return rows


def expert_table(result: dict[str, Any]) -> list[str]:
    """The report's table: small chunks and workers, and large ones."""
    rows = []
    for name in EXPERT:
        for engine in COLOURS:
            small = lines(result, name).get(engine)
            large = lines(result, name, expert=True).get(engine)
            if small and large:
                unit = "tasks/s" if small[-1]["unit"] == "tasks" else "MB/s"
                rows.append(
                    f"| {ALL[name].title}, {engine} | {rate(small[-1]):,.0f} | {rate(large[-1]):,.0f} | {unit} |"
                )
    head = ["", "| benchmark | small | large | unit |", "| --- | --- | --- | --- |"]
    return [*head, *rows] if rows else []


def _plot(axes: Any, points: list[dict[str, Any]], values: list[float], **style: Any) -> None:
    cores = [point["cores"] for point in points]
    (line,) = axes.plot(cores, values, **style)
    for point, value in zip(points, values, strict=True):
        fill = "white" if point["oversubscribed"] else line.get_color()
        axes.plot(
            point["cores"], value, "o", color=line.get_color(), markerfacecolor=fill, markersize=5
        )


def draw(result: dict[str, Any], to: Path) -> None:
    """Draw a picture for each workload that has points, and the overviews."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, workload in ALL.items():
        found = lines(result, name)
        if not found:
            continue
        unit = "tasks/s" if workload.unit == "tasks" else "MB/s"
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
                axes.set(
                    xscale=scale, yscale=scale, xlabel="cores (threads of workers)", ylabel=label
                )
                axes.grid(alpha=0.3)
        parts[0][0].legend(frameon=False)
        figure.suptitle(f"{name}: {workload.title} (hollow: more threads than cores here)")
        figure.savefig(to / f"{name}.png", dpi=90)
        plt.close(figure)
    for group, workloads in GROUPS.items():
        if not any(lines(result, name) for name in workloads):
            continue
        figure, parts = plt.subplots(ncols=2, figsize=(13, 6), layout="constrained")
        colours = plt.colormaps["tab10"]
        for place, (name, workload) in enumerate(workloads.items()):
            for engine, style in (("treadle", "-"), ("distributed", ":")):
                points = lines(result, name).get(engine, [])
                for axes, scale in zip(parts, ("linear", "log"), strict=True):
                    if points:
                        label = workload.title if engine == "treadle" else None
                        values = [rate(point) for point in points]
                        style_ = {"color": colours(place), "linestyle": style, "label": label}
                        _plot(axes, points, values, **style_)
                    axes.set(xscale=scale, yscale=scale, xlabel="cores (threads of workers)")
                    axes.set_ylabel("tasks/s" if group == "tasks" else "MB/s")
                    axes.grid(alpha=0.3)
        parts[1].legend(frameon=False, fontsize=8)
        figure.suptitle(f"{group}: complete (Treadle solid, distributed dotted)")
        figure.savefig(to / f"{group}-complete.png", dpi=90)
        plt.close(figure)


if __name__ == "__main__":
    path = Path(sys.argv[1])
    drawn = json.loads(path.read_text(encoding="utf-8"))
    draw(drawn, path.parent)
    print("\n".join(table(drawn)))
