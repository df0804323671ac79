"""The two plots of the notebook, ours beside ipyparallel's, in ``bench/broadcast/out``."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

OUT = Path(__file__).parent / "out"
COLOURS = {
    ("treadle", "direct"): "tab:cyan",
    ("treadle", "broadcast"): "tab:blue",
    ("ipyparallel", "direct"): "tab:orange",
    ("ipyparallel", "broadcast"): "tab:red",
}


def draw(
    sides: Sequence[int], count: int, seconds: Mapping[str, Mapping[tuple[str, str], float]]
) -> None:
    """Seconds against the bytes that one engine gets, and bytes delivered a second.

    ``seconds`` has, for each engine, those of ``(view, side)``, sides as text.
    """
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    OUT.mkdir(exist_ok=True)
    nbytes = [8 * side**2 for side in sides]
    delivered = [count * each / 1e6 for each in nbytes]
    for name, label, values in (
        ("seconds", "seconds", lambda taken: taken),
        ("delivered", "MB delivered a second, all engines", None),
    ):
        figure, axes = plt.subplots(figsize=(7, 4.5))
        for (engine, view), colour in COLOURS.items():
            taken = [seconds[engine][view, str(side)] for side in sides]
            shown = (
                values(taken) if values else [d / t for d, t in zip(delivered, taken, strict=True)]
            )
            axes.plot(nbytes, shown, "o-", color=colour, label=f"{engine}, {view} view")
        axes.set(xscale="log", yscale="log", xlabel="bytes pushed", ylabel=label)
        axes.set_title(f"push to {count} engines")
        axes.grid(alpha=0.3)
        axes.legend()
        figure.tight_layout()
        figure.savefig(OUT / f"{name}.png", dpi=120)
        plt.close(figure)
