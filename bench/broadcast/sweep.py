"""Trees of depths 0 to 5 in simulation, 8 … 512 engines, 8 B … 20 MB, beside the tree that the planner takes.

A simulated engine has a host of its own, with the network that the planner presumes (1.1 GB/s, 100 µs, 10 µs a
message); `python bench/broadcast/run.py --only sweep`. The picture and the numbers go to ``bench/broadcast/out``.
"""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

from engines import ROOT
from figures import Figure
from plots import OUT, unit

COMMAND = ["cargo", "run", "--quiet", "--release", "--locked", "-p", "treadle-sim", "--"]
# The planner is to be no slower than the best depth by more than this.
MOST = 1.1


def measure(quick: bool) -> Iterator[Figure]:
    del quick
    command = [*COMMAND, "--broadcast", "--sweep"]
    ran = subprocess.run(command, cwd=ROOT, check=True, text=True, stdout=subprocess.PIPE)
    pushes = [json.loads(line) for line in ran.stdout.splitlines()]
    OUT.mkdir(exist_ok=True)
    (OUT / "sweep.json").write_text(json.dumps(pushes, indent=1) + "\n", encoding="utf-8")
    draw(pushes)
    for size in sorted({push["size"] for push in pushes}):
        worst: tuple[float, Any, Any] | None = None
        for engines in sorted({push["engines"] for push in pushes}):
            cell = [p for p in pushes if (p["size"], p["engines"]) == (size, engines)]
            planned = next(p for p in cell if p["depth"] is None)
            best = min(
                (p for p in cell if p["depth"] is not None), key=lambda push: push["seconds"]
            )
            ratio = planned["seconds"] / best["seconds"]
            if worst is None or ratio > worst[0]:
                worst = (ratio, planned, best)
        assert worst is not None
        ratio, planned, best = worst
        yield Figure(
            f"simulated: the planner over the best of depths 0 to 5, {size:,} B to 8 … 512 engines",
            f"{ratio:.2f} × at most, at {planned['engines']} engines ({planned['seconds'] * 1e3:.3g} ms, degree "
            f"{planned['degree']}; depth {best['depth']}, degree {best['degree']}: {best['seconds'] * 1e3:.3g} ms)",
            bar=f"≤ {MOST} ×",
            passed=ratio <= MOST,
        )


def draw(pushes: list[dict[str, Any]]) -> None:
    """One part for each size: milliseconds over engines, a line for each depth, the planner's dashed."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    sizes = sorted({push["size"] for push in pushes})
    figure, parts = plt.subplots(ncols=len(sizes), figsize=(4 * len(sizes), 4.5), sharex=True)
    for axes, size in zip(parts, sizes, strict=True):
        for depth in (*range(6), None):
            line = [p for p in pushes if (p["size"], p["depth"]) == (size, depth)]
            style: dict[str, Any] = {"marker": "o", "markersize": 3, "label": f"depth {depth}"}
            if depth is None:
                style = {"color": "black", "linestyle": "--", "label": "the planner's"}
            axes.plot([p["engines"] for p in line], [p["seconds"] * 1e3 for p in line], **style)
        axes.set(xscale="log", yscale="log", xlabel="engines")
        axes.set_title(unit(size) if size >= 1024 else f"{size} B")
        axes.set_xticks([8, 32, 128, 512], ["8", "32", "128", "512"])
        axes.minorticks_off()
        axes.grid(alpha=0.3)
    parts[0].set_ylabel("ms until all engines have it (simulated)")
    parts[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    figure.savefig(OUT / "sweep.png", dpi=120)
    plt.close(figure)
