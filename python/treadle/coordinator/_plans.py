"""What a job does, as the plans of its queries say: the same in each run, whatever it reads and however Spark is tuned.

A plan's shape has neither names of tables, paths and columns nor numbers. How rows are joined, sorted and moved, and whether
a plan may change while it runs, is left out, too: settings say that, and tuning changes settings.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

__all__ = ["Plans", "fingerprint", "shape_of_plan", "shape_of_stage"]

# Of a job that changes all the time, so many earlier plans are remembered.
_MOST_LEFT = 20
# A plan that comes back so often is one of several that the job has.
_COMES_BACK = 2

_LINE = re.compile(r"(?P<lead>(?:[: ] {2})*(?:[:+]- )?)(?:\*(?:\(\d+\))? |['!])?(?P<text>\S.*)")
_NUMBER = re.compile(r"\((\d+)\)\s*$")
_WORD = re.compile(r"[A-Za-z]+")
_REUSED = re.compile(r"^\((\d+)\) ReusedExchange \[Reuses operator id: (\d+)\]", re.MULTILINE)
_RANGES = re.compile(r"^\((\d+)\) Exchange\n(?:Input.*\n)?Arguments: rangepartitioning", re.MULTILINE)  # fmt: skip
_KEYS = re.compile(r"^\((\d+)\) \w*Aggregate\b.*\n(?:Input.*\n)?Keys.*?: (.*)$", re.MULTILINE)
# What others of them stand for: statistics and settings choose between these.
_ALIKE = {
    **dict.fromkeys(
        ("SortMergeJoin", "BroadcastHashJoin", "ShuffledHashJoin", "BroadcastNestedLoopJoin", "CartesianProduct"),
        "Join",
    ),
    **dict.fromkeys(("HashAggregate", "ObjectHashAggregate", "SortAggregate"), "Aggregate"),
}  # fmt: skip
# What a planner adds, and what an engine needs.
_ADDED = frozenset((
    "AQEShuffleRead", "AdaptiveSparkPlan", "BroadcastExchange", "BroadcastQueryStage", "ColumnarToRow",
    "CustomShuffleReader", "Exchange", "InputAdapter", "Project", "ResultQueryStage", "RowToColumnar", "ShuffleExchange",
    "ShuffleQueryStage", "Sort", "TableCacheQueryStage", "WholeStageCodegen",
))  # fmt: skip
_SUBQUERIES = frozenset(("ReusedSubquery", "Subquery", "SubqueryBroadcast"))
# How a plan looks while it runs, which depends on its rows.
_ADAPTED = ("== Final Plan ==", "== Current Plan ==")


@dataclass
class _Operator:
    name: str
    number: int
    children: list[_Operator] = field(default_factory=list)
    keys: str | None = None
    """What an aggregate groups by."""

    def is_added(self) -> bool:
        return not self.name or self.name in _ADDED or self.name == "ReusedExchange"


def shape_of_plan(text: str) -> str:
    """Return the shape of a plan, as Spark prints it in the event log, as a short text; empty: it has none."""
    tree, _, details = text.partition("\n\n")
    root = _Operator("", 0)
    numbered: dict[int, _Operator] = {}
    path: list[tuple[int, _Operator]] = [(-1, root)]
    # From which depth on lines are left out, and whether that is how the plan looked while it ran.
    skipped: tuple[int, bool] | None = None
    for line in tree.splitlines():
        found = _LINE.match(line)
        if found is None:
            continue
        depth, said = len(found["lead"]) // 3, found["text"]
        if said.startswith("=="):
            # The plan below it is at its own depth.
            if skipped is None or depth < skipped[0] or (skipped[1] and depth == skipped[0]):
                skipped = (depth, True) if said.startswith(_ADAPTED) else None
            continue
        if skipped is not None and depth >= skipped[0]:
            continue
        skipped = None
        while path[-1][0] >= depth:
            path.pop()
        number = _NUMBER.search(said)
        one = _Operator(_name(said), int(number[1]) if number else 0)
        if one.name in _SUBQUERIES:
            skipped = (depth + 1, False)
            continue
        path[-1][1].children.append(one)
        path.append((depth, one))
        numbered[one.number] = one
    for reused, known in _REUSED.findall(details):
        if int(reused) in numbered and (again := numbered.get(int(known))) is not None:
            numbered[int(reused)].children = [again]
    for ordered in {int(one) for one in _RANGES.findall(details)} & numbered.keys():
        numbered[ordered].name = "OrderBy"
    for number, keys in _KEYS.findall(details):
        if int(number) in numbered:
            numbered[int(number)].keys = keys
    return "".join(sorted(_shapes(root, {})))


def _name(text: str) -> str:
    words = text.split()
    plain = [_WORD.match(word) for word in words[:2]]
    if plain[0] is None:
        return ""
    name = plain[0][0]
    if name == "Execute" and len(plain) > 1 and plain[1] is not None:
        return plain[1][0]
    # The format of files; other words after it name a table.
    if name == "Scan" and len(words) > 1 and words[1].isalpha() and words[1].islower():
        return f"{name} {words[1]}"
    return _ALIKE.get(name, name)


def _shapes(one: _Operator, known: dict[int, list[str]]) -> list[str]:
    """Return what an operator looks like with all below it: those of its children, if a planner has added it."""
    found = known.get(id(one))
    if found is not None:
        return found
    # One that would be below itself has no shape.
    known[id(one)] = []
    below = [shape for child in one.children for shape in _shapes(child, known)]
    if not one.is_added() and not _has_a_part_below(one):
        below = [_digest([one.name, *sorted(below)])]
    known[id(one)] = below
    return below


def _has_a_part_below(one: _Operator) -> bool:
    """Whether an aggregate ends what the one below it has begun: newer Sparks make one of both if no rows move."""
    below, seen = one, {id(one)}
    while len(below.children) == 1:
        (below,) = below.children
        # One may be below itself, in what is not a plan.
        if id(below) in seen:
            return False
        seen.add(id(below))
        if not below.is_added():
            return one.keys is not None and one.keys == below.keys
    return False


def shape_of_stage(rdds: Sequence[Mapping[str, Any]]) -> str:
    """Return the shape of a stage, by the kinds of its RDDs and the functions that have made them."""
    found = set()
    for one in rdds:
        made = _WORD.match(str(one.get("Callsite", "")))
        kind = str(one.get("Name", ""))
        # Other names are given by programs, or paths.
        is_kind = "RDD" in kind and kind.isalnum()
        found.add(f"{kind if is_kind else ''} {made[0] if made else ''}")
    return _digest(sorted(found))


def fingerprint(shapes: Collection[str]) -> str:
    """Return what identifies a set of shapes, however often each was there; empty: there are none."""
    return _digest(sorted(set(shapes))) if shapes else ""


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode("utf-8", "replace")).hexdigest()[:16]


@dataclass
class Plans:
    """The plans of a recurring job: by a new one it has become another job, whose earlier runs say nothing of it."""

    current: list[str] = field(default_factory=list)
    """Fingerprints. There are several if the job's plan depends on what it reads."""
    left: list[str] = field(default_factory=list)
    returns: int = 0
    """So many of its earlier plans have come back, one after another."""
    since: float = 0.0

    @classmethod
    def of(cls, values: Mapping[str, Any]) -> Plans:
        """Return what :meth:`to_dict` wrote."""
        return cls(**values)

    def to_dict(self) -> dict[str, Any]:
        """Return what JSON can keep."""
        return asdict(self)

    def changed(self, plan: str, at: float) -> bool:
        """Take the plan of a run that ended at a time; return whether the job has become another one by it.

        One that comes back for the second time is no change: the job has several plans.
        """
        if plan in self.current:
            return False
        comes_back = plan in self.left
        self.returns = self.returns + 1 if comes_back else 0
        if self.returns >= _COMES_BACK:
            self.current.append(plan)
            return False
        is_first = not self.current
        left = dict.fromkeys([*self.left, *self.current])
        self.left = [one for one in left if one != plan][-_MOST_LEFT:]
        self.current, self.since = [plan], at
        return not is_first
