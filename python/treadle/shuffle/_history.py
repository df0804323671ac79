"""Records of shuffles, those that run and those that have ended, as people read them.

The scheduler keeps them, and the master of a shuffle service (``crates/shuffle/history``).
``client.shuffles()``, ``service.records()``, ``treadle shuffle`` and the journal use them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from html import escape
from typing import Any

from dask.utils import format_bytes, format_time

__all__ = ["ShuffleRecord", "Shuffles", "Sizes", "picture"]

_BLOCKS = " ▁▂▃▄▅▆▇█"
# The first characters that are shown in tables: of a hash, as Dask's names and the tokens in keys are, and of
# a name of the shuffle service.
_SHOWN = 8
_SHOWN_OF_NAME = 40


@dataclass(frozen=True)
class Sizes:
    """Bytes by partition: a few figures, however many partitions there are."""

    count: int
    """How many partitions there are."""
    bytes: int
    """Bytes of all."""
    empty: int
    """How many have no rows."""
    quantiles: list[tuple[int, int]]
    """Percents of the partitions, and the bytes that so many of them do not exceed."""
    largest: list[tuple[int, int]]
    """The largest partitions with their bytes, at most eight, the largest one first."""
    bars: list[int]
    """For at most 64 ranges of neighbours, the bytes of the largest one of each."""
    bar: int
    """How many partitions such a range has."""

    @property
    def mean(self) -> float:
        """Bytes of a partition on average."""
        return self.bytes / self.count if self.count else 0.0

    @property
    def skew(self) -> float:
        """How many times as large as the average the largest partition is; 1: all are equal."""
        return self.largest[0][1] / self.mean if self.bytes else 1.0


@dataclass(frozen=True, repr=False)
class ShuffleRecord:
    """What is known of a shuffle. Times are seconds since 1970, durations are seconds."""

    number: int
    """Of this run of it, never used again by its scheduler."""
    name: str
    """Dask's id of it; the key of its barrier ends with it."""
    kind: str
    """``shuffle``, ``merge`` (one side of it) or ``rechunk``; of a shuffle service ``service``."""
    key: str | None
    """The name of the tasks that read its outputs, where that is known."""
    client: str | None
    """Who submitted it, or registered it at the service."""
    state: str
    """``running``, ``finished``, ``failed`` or ``cancelled``. It runs until workers have said what they did."""
    phase: str
    """``waiting``, ``transfer``, ``barrier`` or ``read``: what it does, or did at its end."""
    began: float
    ended: float | None
    seconds: dict[str, float]
    """How long it was in each phase: ``transfer``, ``barrier``, ``read``; and ``waiting`` before that."""
    inputs: int
    transferred: int
    """Inputs whose rows are with the workers of their outputs, while it runs."""
    partitions: int
    outputs: int
    """Partitions that somebody reads."""
    rows: int
    """Of all outputs; before they can be read, rows that were moved so far."""
    bytes: int
    expected_bytes: int
    """What ``bytes`` comes to if the inputs that are missing have as many as the others."""
    moved_rows: int
    """With those of inputs that ran again."""
    moved_bytes: int
    transfers: int
    """Inputs that were transferred, with those that ran again."""
    repeated: int
    """Those of them that ran again."""
    generation: int
    """How often outputs were assigned to workers: rises when one is lost."""
    copies: int
    """At how many places each row is."""
    servers: list[str]
    """Workers that hold outputs, or did; names of servers of a service."""
    sizes: Sizes | None
    """Bytes by output, since they could be read."""
    work: dict[str, Any]
    """What the workers did. They say it at the end; those that were lost do not.

    ``reads``: outputs that were read. ``read_bytes``, ``pushed_bytes`` (to other workers),
    ``stored_bytes``, ``spilled_bytes`` (to files), ``loaded_bytes`` (from files). ``again``: tasks that
    were given back, to run again. ``failed``: tasks that failed. All tasks together took
    ``gather_seconds`` to sort rows by output, and waited ``push_seconds`` for workers to take rows,
    ``compare_seconds`` for the barrier and ``read_seconds`` for rows to read.
    """
    troubles: list[dict[str, Any]]
    """What went wrong, each with ``time`` and ``what``: workers that were lost and why, rows that were
    damaged, files that could not be written, inputs that differed. The first 32."""
    more_troubles: int
    """How many more there were."""
    failure: str | None
    """Why it failed."""
    service: str | None = field(default=None)
    """The address of the shuffle service that has its rows; ``None``: they are at workers."""
    cluster: str | None = field(default=None)
    """The id of the scheduler's cluster, in a journal."""
    stages: str | None = field(default=None)
    """The numbers of the stages of a Spark application that write it."""

    @staticmethod
    def joined(told: Mapping[str, Any], there: Mapping[str, Any] | None) -> Mapping[str, Any]:
        """Return what a scheduler says of a shuffle, with what the service says that has its rows."""
        if there is None:
            return told
        own = ("number", "name", "kind", "key", "client", "service")
        joined = {**there, **{name: told[name] for name in own}}
        if told["state"] in ("running", "failed"):
            joined |= {name: told[name] for name in ("state", "failure")}
        return joined

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> ShuffleRecord:
        """Return what the scheduler or a journal says. What this version does not know is left out."""
        values: dict[str, Any] = {one.name: told.get(one.name) for one in dataclasses.fields(cls)}
        if (sizes := values["sizes"]) is not None:
            known = {one.name: sizes[one.name] for one in dataclasses.fields(Sizes)}
            for name in ("quantiles", "largest"):
                known[name] = [(first, second) for first, second in known[name]]
            values["sizes"] = Sizes(**known)
        if not isinstance(values["failure"], str | None):
            values["failure"] = _text_of(values["failure"])
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return all of it as values that JSON has."""
        return dataclasses.asdict(self)

    @property
    def complete(self) -> bool:
        """Whether outputs can be read, or could at the end."""
        return self.phase == "read"

    @property
    def waits_for(self) -> str | None:
        """What comes next while it runs: ``inputs``, the ``barrier`` or ``readers``."""
        if self.state != "running":
            return None
        if self.complete:
            return "readers"
        return "inputs" if self.transferred < self.inputs else "barrier"

    @property
    def duration(self) -> float:
        """How long it ran."""
        return sum(self.seconds.values()) - self.seconds["waiting"]

    @property
    def rates(self) -> dict[str, float]:
        """Bytes a second while rows were transferred and while they were read, all workers together."""
        moved = {"transfer": self.moved_bytes, "read": self.work["read_bytes"]}
        return {
            phase: count / self.seconds[phase] if self.seconds[phase] else 0.0
            for phase, count in moved.items()
        }

    def __repr__(self) -> str:
        return (
            f"<ShuffleRecord {self.number} {self.kind} {self._called()}: {self._standing()}, "
            f"{self.inputs:,} inputs to {self.outputs:,} outputs, {self.rows:,} rows, "
            f"{format_bytes(self.bytes)}, {format_time(self.duration)}>"
        )

    @property
    def _holders(self) -> str:
        at_service = self.kind == "service" or self.service is not None
        return "servers" if at_service else "workers"

    def _called(self) -> str:
        if self.key is None:
            return self.name[: _SHOWN_OF_NAME if self.kind == "service" else _SHOWN]
        prefix, dash, token = self.key.rpartition("-")
        return f"{prefix}{dash}{token[:_SHOWN]}"

    def _standing(self) -> str:
        return f"waits for {self.waits_for}" if self.state == "running" else self.state

    def row(self) -> list[str]:
        """Return its cells in a table with :data:`HEADINGS`."""
        return [
            str(self.number),
            self.kind,
            self._called(),
            self._standing(),
            f"{self.transferred if self.state == 'running' else self.inputs:,}/{self.inputs:,}",
            f"{self.outputs:,}",
            f"{self.rows:,}",
            format_bytes(self.bytes),
            "" if self.sizes is None else f"{self.sizes.skew:.1f}",
            f"{self.repeated:,}",
            format_time(self.duration),
        ]

    def lines(self) -> list[tuple[str, str]]:
        """Return what there is to say of it, as names and texts."""
        work, size, time = self.work, format_bytes, format_time
        phases = ("transfer", "barrier", "read")
        times = ", ".join(f"{phase} {time(self.seconds[phase])}" for phase in phases)
        rates = ", ".join(f"{phase} {size(int(rate))}/s" for phase, rate in self.rates.items())
        waits = (
            f"{time(work['push_seconds'])} to push, {time(work['compare_seconds'])} for the barrier, "
            f"{time(work['read_seconds'])} to read"
        )
        files = f"{size(work['spilled_bytes'])} written, {size(work['loaded_bytes'])} read"
        inputs = f"{self.inputs:,}, {self.transfers:,} transfers, {self.repeated:,} repeated"
        lines = [
            ("shuffle", f"{self.number}, {self.kind}, {self.name}"),
            ("read by", self.key or "unknown"),
            ("client", self.client or "unknown"),
            ("state", self._standing()),
            ("inputs", inputs),
            ("outputs", f"{self.outputs:,} of {self.partitions:,}, {work['reads']:,} reads"),
            ("rows", f"{self.rows:,}, {size(self.bytes)}"),
            ("times", times),
            ("rates", rates),
            ("tasks waited", waits),
            ("files", files),
            ("to others", size(work["pushed_bytes"])),
            ("tasks again", f"{work['again']:,} given back, {work['failed']:,} failed"),
            ("generation", str(self.generation)),
            (self._holders, ", ".join(self.servers)),
        ]
        if self.service is not None:
            lines.append(("service", self.service))
        if self.stages is not None:
            lines.append(("stages", self.stages))
        if self.failure:
            lines.append(("failure", self.failure))
        lines += [("trouble", str(trouble["what"])) for trouble in self.troubles]
        if self.more_troubles:
            lines.append(("trouble", f"{self.more_troubles:,} more"))
        if self.sizes is not None:
            at = ", ".join(f"{percent} %: {size(most)}" for percent, most in self.sizes.quantiles)
            number, most = self.sizes.largest[0] if self.sizes.largest else (0, 0)
            skew = f"{self.sizes.skew:.1f} times the average"
            lines += [
                ("sizes", at),
                ("largest", f"number {number}: {size(most)}, {skew}"),
                ("empty", f"{self.sizes.empty:,}"),
                ("by output", picture(self.sizes)),
            ]
        return lines

    def _repr_html_(self) -> str:
        rows = "".join(
            f"<tr><th>{escape(name)}</th><td><tt>{escape(text)}</tt></td></tr>"
            for name, text in self.lines()
        )
        return f"<table>{rows}</table>"


HEADINGS = [
    *("shuffle", "kind", "name", "state", "inputs", "outputs", "rows", "size", "skew"),
    *("repeated", "time"),
]


class Shuffles(list[ShuffleRecord]):
    """Records of shuffles; a notebook shows them as a table."""

    @property
    def running(self) -> Shuffles:
        """Those that run."""
        return Shuffles(one for one in self if one.state == "running")

    def __repr__(self) -> str:
        return "[" + ",\n ".join(map(repr, self)) + "]"

    def _repr_html_(self) -> str:
        head = "".join(f"<th>{escape(name)}</th>" for name in HEADINGS)
        rows = ["".join(f"<td>{escape(cell)}</td>" for cell in one.row()) for one in self]
        return f"<table><tr>{head}</tr>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def picture(sizes: Sizes) -> str:
    """Return a bar for each output, or for neighbours the largest of them, relative to the largest."""
    top = max(sizes.bars, default=0)
    return "".join(_BLOCKS[_height(size, top)] for size in sizes.bars)


def _height(size: int, top: int) -> int:
    # What is not empty can be seen.
    return max(1, round(size / top * (len(_BLOCKS) - 1))) if size else 0


def _text_of(failure: Sequence[Any]) -> str:
    """Return why a task failed, as the scheduler says it: the kind, the key at fault, and more."""
    from treadle.errors import _pickled as errors

    kind, key, more = failure
    if kind == "raised":
        return f"{key!r} raised {errors.split(more)[2]}"
    if kind == "workers-lost":
        lost = "; ".join(f"{one['address']}: {one['cause']}" for one in more)
        return f"{key!r} was lost with its workers ({lost})"
    if kind in ("data-lost", "actor-lost"):
        return f"{key!r} was lost with worker {more['address']} ({more['cause']})"
    return f"{key!r} needs {more!r}, which is not there"
