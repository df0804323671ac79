"""ipyparallel's notebook at its own scale: 100 engines, its cells unchanged, its table and its plots as pictures.

``python bench/broadcast/published.py --to docs/pictures/broadcast`` takes about half an hour on a quiet machine, and
12 GB: 100 engines of each side are there at once. Treadle and ipyparallel take turns: a round has Treadle, then
ipyparallel with the depths 0 to 3 of its broadcast scheduler, each with and without coalescing. ``--where far`` (needs
root) runs the same from a client behind 50 ms and 100 Mbit/s, ``--where near far`` both.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import statistics
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

sys.path.append(str(Path(__file__).parent.parent))

import engines
from distant import LATENCY, RATE, namespace, own_address
from plots import unit
from program import Program
from report import machine

HERE = Path(__file__).parent
DEPTHS = (0, 1, 2, 3)
# Seconds for a whole notebook: ipyparallel's direct view sends each array to each engine.
PATIENCE = 3600
# Of the last of a line of the table: what is compared is the better of ipyparallel's views.
BAR = 20

# What a client is asked, by the name of its line.
Results = dict[str, list[dict[str, Any]]]


def ports_of(value: Any) -> Iterator[int]:
    """The ports in a connection file: all whole numbers of it."""
    if isinstance(value, dict):
        value = list(value.values())
    if isinstance(value, list):
        for item in value:
            yield from ports_of(item)
    elif isinstance(value, int) and value > 1:
        yield value


@contextlib.contextmanager
def client(
    kind: str, where: str, count: int, secret: Mapping[str, str], ports: list[int] | None
) -> Iterator[Program | None]:
    """A client in a process of its own; behind the link if ports are given. None: it gets no answers."""
    command = [sys.executable, str(HERE / "cells.py"), kind, where, str(count)]
    with contextlib.ExitStack() as stack:
        environment = dict(secret)
        if ports is not None:
            # The ports of ipyparallel's controller are on the loopback interface.
            host = own_address() if kind == "treadle" else "127.0.0.1"
            name = stack.enter_context(namespace(host))
            link = [sys.executable, str(HERE / "link.py"), name, host, str(RATE), str(LATENCY)]
            program = stack.enter_context(Program(link))
            program.tell(" ".join(map(str, ports)))
            program.line()
            command = ["ip", "netns", "exec", name, "unshare", "--uts", *command]
            environment["TREADLE_BENCH_FAR"] = "1"
        found = stack.enter_context(Program(command, environment))
        is_there = found.line(timeout=engines.REGISTRATION).strip() == "ready"
        yield found if is_there else None


def ask(program: Program, what: str) -> dict[str, Any]:
    program.tell(what)
    answer: dict[str, Any] = json.loads(program.line(timeout=PATIENCE))
    return answer


def measure(
    count: int, rounds: int, depths: tuple[int, ...], far: bool
) -> Iterator[dict[str, Any]]:
    """Yield all that is known after each notebook."""
    found: Results = {}
    curves: dict[str, Any] = {}

    def known() -> dict[str, Any]:
        return {
            "machine": machine(),
            "engines": count,
            "rounds": rounds,
            "far": far,
            "notebook": {name: merged(runs) for name, runs in found.items()},
            "curves": curves,
        }

    where = {"host": own_address(), "insecure": True} if far else {}
    with engines.treadle(count, **where) as ours:
        address = ours.cluster.scheduler_address
        secret = {"TREADLE_SECRET_FILE": str(ours.cluster.secret_file)}
        workers = ours.scheduler_info(n_workers=-1)["workers"]
        ports = [int(one.rpartition(":")[2]) for one in (address, *workers)] if far else None
        for turn in range(rounds):
            with client("treadle", address, count, secret, ports) as program:
                assert program is not None
                found.setdefault("treadle", []).append(ask(program, "notebook"))
                if turn == 0:
                    curves["treadle"] = ask(program, "curve")
            yield known()
            for depth in depths:
                for name, program in peers(count, depth, far):
                    if program is None:
                        print(f"{name}: no answers, left out", file=sys.stderr, flush=True)
                        continue
                    found.setdefault(name, []).append(ask(program, "notebook"))
                    if turn == 0 and depth == max(depths):
                        curves[name] = ask(program, "curve")
                    yield known()
            print(f"round {turn + 1} of {rounds} is over", file=sys.stderr)


def peers(count: int, depth: int, far: bool) -> Iterator[tuple[str, Program | None]]:
    """Start ipyparallel's engines, and yield the client of each of its lines. None: it gets no answers."""
    names = {kind: f"{kind}, depth {depth}" for kind in ("ipyparallel", "coalescing")}
    with contextlib.ExitStack() as stack:
        try:
            scheduler = f"--IPController.broadcast_scheduler_depth={depth}"
            cluster = stack.enter_context(engines.ipyparallel_cluster(count, scheduler))
        except TimeoutError as error:
            # Some of a hundred engines do not always come.
            print(f"depth {depth}: {error}", file=sys.stderr, flush=True)
            yield from ((name, None) for name in names.values())
            return
        # The file by which clients connect.
        file = Path(
            cluster.profile_dir, "security", f"ipcontroller-{cluster.cluster_id}-client.json"
        )
        ports = sorted(set(ports_of(json.loads(file.read_text())))) if far else None
        for kind, name in names.items():
            with client(kind, str(file), count, {}, ports) as program:
                yield name, program


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Medians over the rounds of the means that `%timeit` gave: direct and broadcast."""

    def median(pairs: list[Any]) -> list[float]:
        return [statistics.median(pair[view][0] for pair in pairs) for view in (0, 1)]

    sides = runs[0]["push"]
    return {
        "call": median([run["call"] for run in runs]),
        "push": {side: median([run["push"][side] for run in runs]) for side in sides},
    }


def table(result: dict[str, Any]) -> list[str]:
    """The notebook's table, with a row for each side and line; how many times as fast ours is beside theirs."""
    count = result["engines"]
    lines = [
        "| | n | direct view | broadcast | broadcast speedup | MB | treadle's over the better of both |",
        "| --- | --- | --- | --- | --- | --- | --- |",
    ]
    ours = result["notebook"]["treadle"]
    for name, found in result["notebook"].items():
        for side in ("call", *found["push"]):
            direct, broadcast = found["call"] if side == "call" else found["push"][side]
            best = min(ours["call"] if side == "call" else ours["push"][side])
            size = "" if side == "call" else f"{8 * int(side) ** 2 * count / 2**20:.6f}"
            ratio = "" if name == "treadle" else f"{min(direct, broadcast) / best:.1f} ×"
            lines.append(
                f"| {name} | {side} | {direct:.6f} | {broadcast:.6f} | {direct / broadcast:.6f} | {size} | {ratio} |"
            )
    return lines


def figures(result: dict[str, Any]) -> dict[str, Any]:
    """The notebook's two plots, and the curve for few engines, by the names of their files."""
    import matplotlib.pyplot as plt

    count = result["engines"]
    where = ", client behind 50 ms and 100 Mbit/s" if result["far"] else ""
    suffix = "-far" if result["far"] else ""
    # Ours in blue, theirs from red to yellow.
    theirs = [name for name in result["notebook"] if name != "treadle"]
    colours = {
        name: plt.colormaps["autumn"](place / max(len(theirs), 2))
        for place, name in enumerate(theirs)
    } | {"treadle": "tab:blue"}
    made = {}
    for name, label in (("seconds", "seconds until all have it"), ("throughput", "MB a second")):
        figure, axes = plt.subplots(figsize=(9, 6), layout="constrained")
        for line, found in result["notebook"].items():
            sizes = [8 * int(side) ** 2 for side in found["push"]]
            for view, style in ((0, "-"), (1, "--")):
                values = [pair[view] for pair in found["push"].values()]
                if name == "throughput":
                    values = [
                        count * size / 1e6 / one for size, one in zip(sizes, values, strict=True)
                    ]
                label_ = f"{line}: {('direct', 'broadcast')[view]}"
                axes.plot(sizes, values, style, marker="o", color=colours[line], label=label_)
        axes.set(xscale="log", yscale="log", ylabel=label, xlabel="array pushed to each engine")
        axes.set_xticks(
            sizes, [f"{side} × {side}\n{unit(8 * int(side) ** 2)}" for side in found["push"]]
        )
        axes.minorticks_off()
        axes.set_title(f"push to {count} engines{where}")
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=7, ncols=2, handlelength=5)
        made[f"notebook-{name}{suffix}"] = figure

    figure, parts = plt.subplots(ncols=2, figsize=(11, 5), layout="constrained")
    for axes, what in zip(parts, ("call", "push"), strict=True):
        for line, found in result["curves"].items():
            for view, points in found[what].items():
                numbers = list(map(int, points))
                milliseconds = [one * 1e3 for one in points.values()]
                axes.plot(numbers, milliseconds, marker="o", label=f"{line}: {view}")
        axes.set(xscale="log", yscale="log", xlabel="engines", ylabel="ms")
        axes.set_title("an empty call" if what == "call" else "push of 256 × 256 doubles")
        axes.grid(alpha=0.3)
    parts[0].legend(frameon=False, fontsize=7)
    figure.suptitle(f"few engines{where}")
    made[f"notebook-few{suffix}"] = figure
    return made


def draw(result: dict[str, Any], to: Path) -> None:
    """Write the figures."""
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    for name, figure in figures(result).items():
        figure.savefig(to / f"{name}.png", dpi=120)
        plt.close(figure)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--engines", type=int, default=100, metavar="N")
    parser.add_argument("--rounds", type=int, default=3, metavar="N")
    parser.add_argument("--depths", type=int, nargs="*", default=list(DEPTHS), metavar="N")
    parser.add_argument("--where", nargs="+", choices=("near", "far"), default=["near"])
    parser.add_argument("--to", type=Path, default=HERE / "out" / "published", metavar="DIR")
    args = parser.parse_args()
    args.to.mkdir(parents=True, exist_ok=True)
    for place in args.where:
        far = place == "far"
        name = "notebook-far" if far else "notebook"
        lines: list[str] = []
        for result in measure(args.engines, args.rounds, tuple(args.depths), far):
            text = json.dumps(result, indent=1, ensure_ascii=False) + "\n"
            (args.to / f"{name}.json").write_text(text, encoding="utf-8")
            where = ", far away" if far else ""
            lines = [f"{args.engines} engines{where}: {result['machine']}", "", *table(result)]
            (args.to / f"{name}.md").write_text("\n".join(lines) + "\n", encoding="utf-8")
            draw(result, args.to)
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
