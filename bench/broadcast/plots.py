"""The two plots of the notebook, ours beside ipyparallel's, in ``bench/broadcast/out``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

OUT = Path(__file__).parent / "out"
# Ours in blues, theirs in oranges; the broadcast view is the darker one, and dashed.
STYLES = {
    "treadle direct": ("#56a0d3", "-", "o"),
    "treadle broadcast": ("#12507b", "--", "s"),
    "ipyparallel direct": ("#f2a65a", "-", "o"),
    "ipyparallel broadcast": ("#b5451b", "--", "s"),
}


def draw(count: int, seconds: Mapping[int, Mapping[str, float]]) -> None:
    """Draw the seconds of a push to ``count`` engines, and the megabytes that it delivers a second.

    ``seconds`` has those of each view, for each side of the square arrays of doubles.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    OUT.mkdir(exist_ok=True)
    sides = list(seconds)
    sizes = [8 * side**2 for side in sides]
    for name, title, label in (
        ("seconds", f"push to {count} engines", "seconds until all have it"),
        ("throughput", f"push to {count} engines, all bytes delivered", "MB a second"),
    ):
        figure, axes = plt.subplots(figsize=(7.5, 5))
        for view, (colour, line, marker) in STYLES.items():
            # Above the higher of the two, below the lower.
            above = view.endswith("direct") == (name == "seconds")
            values = [
                seconds[side][view]
                if name == "seconds"
                else count * size / 1e6 / seconds[side][view]
                for side, size in zip(sides, sizes, strict=True)
            ]
            style = {"color": colour, "linestyle": line, "marker": marker, "linewidth": 2}
            axes.plot(sizes, values, label=f"{view} view", **style)
            for x, value in zip(sizes, values, strict=True):
                axes.annotate(
                    f"{value:.2g}" if value < 10 else f"{value:,.0f}",
                    (x, value),
                    xytext=(0, 7 if above else -14),
                    textcoords="offset points",
                    ha="center",
                    fontsize=8,
                    color=colour,
                )
        axes.set(xscale="log", yscale="log", ylabel=label, xlabel="array pushed to each engine")
        axes.set_xticks(sizes, [f"{side} × {side}\n{unit(8 * side**2)}" for side in sides])
        axes.minorticks_off()
        axes.margins(y=0.15)
        axes.set_title(title)
        axes.grid(alpha=0.3)
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
        figure.tight_layout()
        figure.savefig(OUT / f"{name}.png", dpi=120)
        plt.close(figure)


def unit(size: int) -> str:
    return f"{size >> 20} MiB" if size >= 1 << 20 else f"{size >> 10} KiB"
