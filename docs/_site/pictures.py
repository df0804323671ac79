"""The directive `picture`: what is drawn, as lists. `drawing` has how."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from docutils import nodes
from docutils.parsers.rst import Directive

from drawing import Step, Svg, layers, messages

CRATES = Path(__file__).parents[2] / "crates"

# The highest layer first; lint/layers.py has what may depend on what.
LAYERS = (
    (("python", "interpreter and engine"),),
    (("schedule", "who does what, when"),),
    (("broadcast", "one to all"), ("shuffle", "all to all")),
    (("transfer", "one to one"),),
    (("common", "what several parts share"),),
)


def architecture() -> Svg:
    """The crates of each part, as they are in crates/."""
    drawn = {part for parts in LAYERS for part, _ in parts}
    found = {path.name for path in CRATES.iterdir() if path.is_dir()}
    if drawn != found:
        raise ValueError(f"the picture of the architecture lacks, or has too many: {drawn ^ found}")
    return layers(
        [[(part, about, sorted(_crates(part))) for part, about in parts] for parts in LAYERS]
    )


def _crates(part: str) -> list[str]:
    return [
        path.parent.name
        for path in (CRATES / part).glob("*/Cargo.toml")
        if path.parent.name != "node-tests"
    ]


def task() -> Svg:
    return messages(
        ["client", "scheduler", "worker A", "worker B"],
        [
            Step("client", None, "the recipe: the call as bytes, its function pickled once"),
            Step("client", "scheduler", "tasks in a batch"),
            Step("scheduler", None, "place each where its inputs are, or a slot is free"),
            Step("scheduler", "worker A", "run x"),
            Step("worker A", None, "a thread runs the recipe in Python"),
            Step("worker A", "scheduler", "done: its size, and the value up to 1 KiB"),
            Step("scheduler", "client", "the future is done"),
            Step("scheduler", "worker B", "run y; x is at A"),
            Step("worker B", "worker A", "get x"),
            Step("worker A", "worker B", "frames of x, not copied"),
            Step("worker B", None, "run y"),
            Step("worker B", "scheduler", "done; x may be released"),
        ],
    )


def broadcast() -> Svg:
    return messages(
        ["client", "engine 0", "engine 1", "engine 2"],
        [
            Step("client", None, "pickle the call once; plan the tree"),
            Step("client", "engine 0", "the cast, in chunks"),
            Step("engine 0", "engine 1", "each chunk while it arrives"),
            Step("engine 1", "engine 2", "the same; on one host, memory that both map"),
            Step("engine 0", None, "run the call"),
            Step("engine 1", None, "run the call"),
            Step("engine 2", None, "run the call"),
            Step("engine 2", "engine 1", "its result"),
            Step("engine 1", "engine 0", "results, merged"),
            Step("engine 0", "client", "all results"),
        ],
    )


def shuffle() -> Svg:
    return messages(
        ["map 1", "holder of 0…3", "holder of 4…7", "barrier", "reader of 5"],
        [
            Step("map 1", None, "sort the rows by partition, into one arena"),
            Step("map 1", "holder of 0…3", "its batch"),
            Step("map 1", "holder of 4…7", "its batch"),
            Step("map 1", "barrier", "the receipt: counts and digests"),
            Step("barrier", "holder of 0…3", "compare, and commit"),
            Step("barrier", "holder of 4…7", "compare, and commit"),
            Step("barrier", "reader of 5", "committed"),
            Step("reader of 5", "holder of 4…7", "rows of 5"),
            Step("holder of 4…7", "reader of 5", "rows, in the order of the maps"),
            Step("reader of 5", None, "check counts and digests again"),
        ],
    )


DRAWN: dict[str, Callable[[], Svg]] = {
    "architecture": architecture,
    "task": task,
    "broadcast": broadcast,
    "shuffle": shuffle,
}


class Picture(Directive):
    """``picture NAME``: one of `DRAWN`, as SVG within the page."""

    required_arguments = 1

    def run(self) -> list[nodes.Node]:
        svg = str(DRAWN[self.arguments[0]]())
        return [nodes.raw("", f'<div class="picture">{svg}</div>', format="html")]
