"""Every step of tasks, kept while somebody wants to know: groups, spans, computations, transitions.

distributed's scheduler hands each transition to its plugins, and counts groups, spans and computations
at each. The native scheduler tells its steps only while somebody has asked: a plugin with
``transition``, a client that uses ``distributed.span``, whoever reads the spans, or the setting
``treadle.scheduler.steps``. What it tells is applied to distributed's own classes, in the sidecar's
loop. What is read there has asked the scheduler before, so that nothing is missing.
"""

from __future__ import annotations

import logging
import pickle
import threading
import traceback
from collections import deque
from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

import dask
from distributed.metrics import time
from distributed.spans import Span, SpansSchedulerExtension

from treadle._compat.distributed import Computation, TaskGroup, TaskPrefix, TaskState
from treadle.common._groups import group_of, prefix_of
from treadle.errors import _pickled as errors
from treadle.scheduler._futures import failure_of
from treadle.scheduler._story import state_of
from treadle.scheduler._views import class_name

if TYPE_CHECKING:
    from treadle.scheduler._standin import SchedulerStandIn

__all__ = ["Steps"]

# Where distributed logs what plugins raise.
logger = logging.getLogger("distributed.scheduler")

# Seconds that the loop has to apply what has come.
_PATIENCE = 30.0
# Spans that are kept, without those in them; distributed keeps all.
_MOST_SPANS = 10_000


class Steps:
    """What became of tasks since somebody wanted to know, in distributed's own classes.

    Attributes
    ----------
    wanted
        Whether the scheduler tells its steps.
    applying
        Whether this thread applies a step: plugins that read tasks meanwhile read these.
    """

    def __init__(self, scheduler: SchedulerStandIn) -> None:
        self._scheduler = scheduler
        self._come: deque[tuple[Callable[..., None], Any]] = deque()
        self._synced = self._kept = False
        self.wanted = False
        self._applier: int | None = None
        self.tasks: dict[Hashable, TaskState] = {}
        self.groups: dict[str, TaskGroup] = {}
        self.prefixes: dict[str, TaskPrefix] = {}
        longest = dask.config.get("distributed.diagnostics.computations.max-history", 100)
        self.computations: deque[Computation] = deque(maxlen=longest)
        self.nthreads: list[tuple[float, int]] = []
        longest = dask.config.get("distributed.admin.low-level-log-length", 100_000)
        self.log: deque[tuple[Any, ...]] = deque(maxlen=longest)
        self.spans = _Spans(self)

    @property
    def applying(self) -> bool:
        """Whether this thread applies a step."""
        return self._applier == threading.get_ident()

    # asking

    def begin(self, *, keep: bool = True) -> None:
        """Have the scheduler tell its steps from now on; whoever asks waits for that.

        Unless they are to be kept, :meth:`end` ends it.
        """
        self._kept |= keep
        if not self.wanted:
            # Before: the loop applies what is told from then on, or drops it.
            self.wanted = True
            try:
                self._scheduler.ask_now("observe", {"submissions": True, "steps": True})
            except BaseException:
                # Whoever wants to know next asks again.
                self.wanted = False
                raise
            self.sync()

    def end(self) -> None:
        """No plugin wants to know any more."""
        if self.wanted and not self._kept:
            self.wanted = self._synced = False
            self._scheduler.ask_now("observe", {"steps": False})
            for kept in (self.tasks, self.groups, self.prefixes, self.computations, self.log):
                kept.clear()

    def sync(self) -> None:
        """Apply all that the scheduler has to tell by now; while a step is applied, nothing.

        Raises
        ------
        TimeoutError
            The scheduler or the loop does not answer.
        """
        if self.applying or not self.wanted:
            return
        self._scheduler.ask_now("tasks", {"keys": []})
        loop = self._scheduler.loop_thread
        if loop.inside:
            self.apply()
        else:
            loop.run(self._apply(), _PATIENCE)

    async def _apply(self) -> None:
        self.apply()

    # what comes

    def told(self, argument: Mapping[str, Any]) -> None:
        """The scheduler tells steps."""
        if dropped := argument.get("dropped"):
            self._come.append((self._resume, dropped))
        self._come.append((self._step_all, argument["steps"]))

    def submitted(self, about: Mapping[str, Any]) -> None:
        """A client tells what it is about to submit."""
        self._come.append((self._submission, about))

    def annotated(self, key: Hashable, metadata: dict[str, Any]) -> None:
        """A worker tells what its plugins have written of a task that is about to end."""
        if self.wanted:
            self._come.append((self._annotate, (key, metadata)))

    def _annotate(self, about: tuple[Hashable, dict[str, Any]]) -> None:
        key, metadata = about
        if (task := self.tasks.get(key)) is not None:
            task.metadata = {**(task.metadata or {}), **metadata}

    def apply(self) -> None:
        """Apply what has come, in the loop."""
        if self.applying:
            return
        self._applier = threading.get_ident()
        try:
            if self.wanted and not self._synced:
                self._begin()
            while self._come:
                function, argument = self._come.popleft()
                try:
                    function(argument)
                except Exception:
                    logger.exception("A step of tasks could not be followed")
        finally:
            self._applier = None

    def _resume(self, dropped: int) -> None:
        """The scheduler has dropped steps, which came faster than they were applied here."""
        logger.warning(
            "%d steps of tasks were dropped: they come faster than plugins, spans and computations "
            "follow them. What was dropped is in none of these; all tasks are looked at anew",
            dropped,
        )
        if self.wanted:
            self._begin()

    def _begin(self) -> None:
        """What there was before anybody asked, as it is now."""
        self._synced = True
        self.count_threads()
        found = self._scheduler.ask_now("tasks", {})
        for key in self.tasks.keys() - {one["key"] for one in found}:
            task = self.tasks[key]
            task.state = "forgotten"
            self._forget(task)
        for one in found:
            task = self._task(one["key"])
            task.state = state_of(one["state"])
            if one["nbytes"] >= 0:
                task.set_nbytes(one["nbytes"])
        for one in found:
            self._read(self.tasks[one["key"]], one["dependencies"])

    def count_threads(self) -> None:
        """Workers have come or gone."""
        if self.wanted:
            self.nthreads.append((time(), self._scheduler.total_nthreads))

    def _task(self, key: Hashable, computation: Computation | None = None) -> TaskState:
        task = self.tasks.get(key)
        if task is not None:
            return task
        name = group_of(key)
        group = self.groups.get(name)
        if group is None:
            of = prefix_of(key)
            prefix = self.prefixes.get(of)
            if prefix is None:
                prefix = self.prefixes[of] = TaskPrefix(of)
            group = self.groups[name] = TaskGroup(name, prefix)
            if computation is not None:
                computation.groups.add(group)
        task = self.tasks[key] = TaskState(key, None, "released", group, validate=False)
        task.priority = (0,)
        return task

    def _read(self, task: TaskState, keys: Iterable[Hashable]) -> None:
        for key in keys:
            task.add_dependency(self._task(key))

    # submissions

    def _submission(self, about: Mapping[str, Any]) -> None:
        annotations: dict[str, dict[Hashable, Any]] = about["annotations"]
        tell = self._scheduler.call_plugins
        hook = {
            "client": about["client"],
            "keys": set(about["keys"]),
            "tasks": list(about["tasks"]),
            "annotations": annotations,
            "priority": about["priority"],
            "stimulus_id": f"update-graph-{time()}",
        }
        if self.wanted:
            # As in distributed, where tasks of one group have one span.
            annotations = self._observe(about, annotations)
            hook["annotations"] = annotations
        event = {"action": "update-graph", "stimulus_id": hook["stimulus_id"], "status": "OK"}
        self._scheduler.log_event(["scheduler", about["client"]], event)
        tell("update_graph", self._scheduler, **hook)

    def _observe(
        self, about: Mapping[str, Any], annotations: Mapping[str, dict[Hashable, Any]]
    ) -> dict[str, dict[Hashable, Any]]:
        if self.computations and not all(group.done for group in self.groups.values()):
            computation = self.computations[-1]
        else:
            computation = Computation()
            self.computations.append(computation)
        if code := about.get("code"):
            computation.code.add(code)
        computation.annotations.update(about.get("common") or {})
        touched = []
        for key in about["tasks"]:
            known = key in self.tasks
            task = self._task(key, computation)
            own = {name: values[key] for name, values in annotations.items() if key in values}
            if own and not (known and task.annotations):
                task.annotations = own
            touched.append(task)
        metadata: Any = about.get("span_metadata") or {}
        spans = self.spans.observe_tasks(touched, code=code or (), span_metadata=metadata)
        told = {name: values for name, values in annotations.items() if name != "span"}
        return {**told, "span": spans} if spans else told  # type: ignore[dict-item]

    # steps

    def _step_all(self, steps: Collection[tuple[Any, ...]]) -> None:
        if not self.wanted:
            return
        # As distributed has it: a task that goes from waiting to a worker at once was in no queue, and
        # one that fails at a worker goes from there.
        held: dict[Hashable, tuple[Any, ...]] = {}
        for step in steps:
            key, state = step[0], step[1]
            before = held.pop(key, None)
            known = self.tasks.get(key)
            if state == "ready" or (
                state == "waiting" and known is not None and known.state == "processing"
            ):
                held[key] = step
                continue
            if before is not None and state == "assigned" and before[1] != "ready":
                # It runs again.
                self._step(*before)
            elif before is not None and state == "failed" and step[5] is None:
                # How long it ran is told when it left the worker.
                step = (*step[:5], before[5], *step[6:])
            self._step(*step)
        for step in held.values():
            self._step(*step)

    def _step(
        self,
        key: Hashable,
        state: str,
        worker: str | None,
        when: float,
        cause: int,
        ran: float | None,
        nbytes: int | None,
        kind: bytes | None,
        why: tuple[str, Hashable, Any] | None,
        inputs: Collection[Hashable] | None,
    ) -> None:
        finish = state_of(state)
        if finish == "forgotten" and key not in self.tasks:
            return
        task = self._task(key)
        if inputs:
            self._read(task, inputs)
        if state == "waiting" and task.group.span_id is not None:
            self.spans.began(task.group.span_id, when)
        start, at = task.state, task.processing_on
        task.processing_on = None
        if finish == "processing" and worker is not None:
            task.processing_on = self._scheduler.worker_at(worker)
        if start == finish:
            return
        task.state = finish
        more: dict[str, Any] = {}
        if ran is not None:
            task.group.add_duration("compute", when - ran, when)
            self.spans.ran(task.group, ran)
            more["startstops"] = [{"action": "compute", "start": when - ran, "stop": when}]
            more["thread"] = 0
            more["status"] = "OK" if finish == "memory" else "error"
        if at is not None and finish in ("memory", "erred"):
            more["worker"] = at.address
        if finish == "memory":
            more |= self._value(task, nbytes, kind)
        elif finish == "erred" and why is not None:
            more |= self._failure(task, *why)
        elif start == "erred":
            task.exception = task.traceback = task.exception_blame = None
        stimulus = f"event-{cause}"
        self.log.append((key, start, finish, {}, stimulus, when))
        self._scheduler.call_plugins("transition", key, start, finish, stimulus_id=stimulus, **more)
        if finish == "forgotten":
            self._forget(task)

    def _value(self, task: TaskState, nbytes: int | None, kind: bytes | None) -> dict[str, Any]:
        name = class_name(kind) if kind else None
        if nbytes is not None:
            task.set_nbytes(nbytes)
        if name:
            task.type = name
            task.group.add_type(name)
        more = {"nbytes": nbytes, "type": kind, "typename": name}
        return {**more, "metadata": task.metadata or {}}

    def _failure(self, task: TaskState, kind: str, key: Hashable, payload: Any) -> dict[str, Any]:
        if kind == "raised":
            exception, trace, text = errors.split(payload)
            shown = errors.load_traceback(trace)
        else:
            error = failure_of(kind, key, payload)
            exception, trace, text, shown = pickle.dumps(error), None, repr(error), None
        lines = "".join(traceback.format_tb(shown))
        blame = self.tasks.get(key, task)
        task.exception_blame = blame
        blame.exception, blame.traceback = exception, trace
        blame.exception_text, blame.traceback_text = text, lines
        return {
            "exception": exception,
            "traceback": trace,
            "exception_text": text,
            "traceback_text": lines,
            "cause": key,
        }

    def _forget(self, task: TaskState) -> None:
        del self.tasks[task.key]
        for other in task.dependencies:
            other.dependents.discard(task)
        group = task.group
        if all(not count or state == "forgotten" for state, count in group.states.items()):
            group.prefix.remove_group(group)
            self.groups.pop(group.name, None)

    def restarted(self) -> None:
        """Everything was dropped."""
        self.computations.clear()
        self.prefixes = {g.prefix.name: g.prefix for g in self.groups.values()}


class _Spans(SpansSchedulerExtension):
    """distributed's, which is told by :class:`Steps`, and asks for what is new before it is read."""

    def __init__(self, steps: Steps) -> None:
        self._steps = steps
        # What distributed's reads of its scheduler.
        super().__init__(self)  # type: ignore[arg-type]

    @property
    def total_nthreads_history(self) -> list[tuple[float, int]]:
        """When workers have come and gone, and how many threads there were since."""
        return self._steps.nthreads

    def __getattribute__(self, name: str) -> Any:
        if name in ("root_spans", "spans", "spans_search_by_name", "spans_search_by_tag"):
            steps = object.__getattribute__(self, "_steps")
            if not steps.applying:
                steps.begin()
                steps.sync()
        return object.__getattribute__(self, name)

    def began(self, span_id: str, when: float) -> None:
        """A task of a span was submitted; the sidecar may have heard of it later."""
        span = self.spans.get(span_id)
        while span is not None and span.enqueued > when:
            span.enqueued = when
            span = span.parent
            # One that contains another began before it.
            when -= 1e-6

    def ran(self, group: TaskGroup, seconds: float) -> None:
        """A task of a group has run for so long."""
        span = self.spans.get(group.span_id or "")
        if span is not None:
            metric = ("execute", group.prefix.name, "run", "seconds")
            span._cumulative_worker_metrics[metric] += seconds

    def _ensure_span(self, name: tuple[str, ...], ids: tuple[str, ...]) -> Span:
        known = self.spans.get(ids[-1])
        if known is not None:
            return known
        parent = None
        for length in range(1, len(name)):
            parent = self._ensure_span(name[:length], ids[:length])
        span = _Span(name, ids[-1], parent, self._steps)
        self.spans[span.id] = span
        self.spans_search_by_name[name].append(span)
        for tag in name:
            self.spans_search_by_tag[tag].append(span)
        (self.root_spans if parent is None else parent.children).append(span)
        if parent is None and len(self.root_spans) > _MOST_SPANS:
            self._forget_oldest()
        return span

    def _forget_oldest(self) -> None:
        """Forget the oldest span, with those in it, of whose tasks the scheduler knows none."""
        known = self._steps.groups
        # The last one is new: its tasks come.
        for place, root in enumerate(self.root_spans[:-1]):
            tree = [root]
            for span in tree:
                tree += span.children
            groups = [group for span in tree for group in span.groups]
            if any(known.get(group.name) is group for group in groups):
                continue
            del self.root_spans[place]
            for span in tree:
                del self.spans[span.id]
                _leave(self.spans_search_by_name, span.name, span)
                for tag in span.name:
                    _leave(self.spans_search_by_tag, tag, span)
            return


def _leave(lists: dict[Any, list[Span]], name: Any, span: Span) -> None:
    lists[name].remove(span)
    if not lists[name]:
        del lists[name]


class _Span(Span):
    """A span that asks for what is new before it is read."""

    __slots__ = ("_steps",)

    def __init__(self, name: tuple[str, ...], id_: str, parent: Span | None, steps: Steps) -> None:
        self._steps = steps
        super().__init__(name, id_, parent, steps.nthreads)

    def traverse_spans(self) -> Iterator[Span]:
        """As distributed's."""
        self._steps.sync()
        return super().traverse_spans()

    @property
    def cumulative_worker_metrics(self) -> dict[tuple[Hashable, ...], float]:
        """How long the tasks ran, by prefix: ``("execute", prefix, "run", "seconds")``.

        distributed's workers tell apart what a thread does meanwhile ("thread-cpu", "memory-read", …);
        Treadle's do not. As there, the rest of what the cluster's threads could have done is
        ``("execute", "N/A", "idle or other spans", "seconds")``.
        """
        self._steps.sync()
        metrics: dict[tuple[Hashable, ...], float] = super().cumulative_worker_metrics
        return metrics
