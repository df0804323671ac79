"""What follows each step of tasks, if somebody wants to know: plugins, spans, computations."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

import dask
import pytest
from distributed import SchedulerPlugin, WorkerPlugin, get_task_metadata, span

import treadle
from client_support import inc
from process_support import until


@pytest.fixture(scope="module")
def followed() -> Iterator[Any]:
    """A cluster that follows steps from its start."""
    with dask.config.set({"treadle.scheduler.steps": True}):
        client = treadle.Client(n_workers=1, threads_per_worker=2, processes=False)
    with client:
        yield client


def throws(x: int) -> None:
    raise RuntimeError("hello")


class Transitions(SchedulerPlugin):
    """Notes what it is told."""

    name = "transitions"

    def __init__(self) -> None:
        self.told: list[tuple[Any, ...]] = []

    def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def transition(self, key, start, finish, *args, stimulus_id, **kwargs):
        task = self.scheduler.tasks[key]
        assert task.state == finish
        if finish == "processing":
            assert task.processing_on.address in self.scheduler.workers
        assert stimulus_id
        self.told.append((key, start, finish, {d.key for d in task.dependencies}, kwargs))


def told(client: Any) -> list[tuple[Any, ...]]:
    def of(dask_scheduler: Any) -> Any:
        dask_scheduler.steps.sync()
        return dask_scheduler.plugins["transitions"].told

    return client.run_on_scheduler(of)  # type: ignore[no-any-return]


def test_a_plugin_is_told_each_transition(client):
    before = client.submit(inc, 0, key="before")
    assert before.result() == 1
    client.register_plugin(Transitions())
    first = client.submit(inc, before, key="first")
    failed = client.submit(throws, first, key="failed")
    with pytest.raises(RuntimeError):
        failed.result()
    steps = told(client)
    of_first = [(start, finish) for key, start, finish, *_ in steps if key == "first"]
    assert of_first == [
        ("released", "waiting"),
        ("waiting", "processing"),
        ("processing", "memory"),
    ]
    reads = {key: dependencies for key, _, finish, dependencies, _ in steps if finish == "waiting"}
    assert reads == {"first": {"before"}, "failed": {"first"}}
    (done,) = [more for key, _, finish, _, more in steps if (key, finish) == ("first", "memory")]
    workers = client.scheduler_info(n_workers=-1)["workers"]
    assert done["worker"] in workers
    assert done["nbytes"] > 0
    (ran,) = done["startstops"]
    assert ran["action"] == "compute"
    assert ran["stop"] >= ran["start"] > 1e9
    (erred,) = [more for *_, finish, _, more in steps if finish == "erred"]
    assert "hello" in erred["exception_text"]
    assert erred["cause"] == "failed"
    assert erred["worker"] in workers
    assert [ran["action"] for ran in erred["startstops"]] == ["compute"]
    client.unregister_scheduler_plugin("transitions")
    assert client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.steps.wanted) is False


def test_a_span_is_followed_from_the_first_task_on(client):
    with span("work", "part") as name:
        futures = client.map(inc, range(3), key="counted")
    assert client.gather(futures) == [1, 2, 3]

    def look(dask_scheduler: Any) -> Any:
        found = dask_scheduler.extensions["spans"].spans[name]
        group = dask_scheduler.tasks[futures[0].key].group
        return {
            "name": found.name,
            "parent": found.parent.name,
            "memory": found.states["memory"],
            "done": found.done,
            "times": found.enqueued <= found.start <= found.stop,
            "took": found.duration > 0 and found.all_durations.keys() == {"compute"},
            "same": group.span_id == name,
            "annotation": dask_scheduler.tasks[futures[0].key].annotations["span"]["name"],
        }

    assert client.run_on_scheduler(look) == {
        "name": ("work", "part"),
        "parent": ("work",),
        "memory": 3,
        "done": True,
        "times": True,
        "took": True,
        "same": True,
        "annotation": ("work", "part"),
    }


def test_a_span_outlives_its_tasks(followed):
    with span("short") as name:
        assert followed.compute(dask.delayed(inc)(1)).result() == 2

    def look(dask_scheduler: Any) -> Any:
        found = dask_scheduler.extensions["spans"].spans[name]
        return found.states["forgotten"] >= 1 and found.done

    until(lambda: followed.run_on_scheduler(look), "the tasks are forgotten")


def test_the_number_of_spans_is_bounded(followed):
    def bound(most: int) -> int:
        from treadle.scheduler import _steps

        before, _steps._MOST_SPANS = _steps._MOST_SPANS, most
        return before

    def names(dask_scheduler: Any) -> Any:
        spans = dask_scheduler.extensions["spans"]
        found = {one.name for one in spans.spans.values()}
        assert found == set(spans.spans_search_by_name)
        assert {tag for name in found for tag in name} == set(spans.spans_search_by_tag)
        return found

    def is_forgotten(key: str) -> bool:
        return followed.run_on_scheduler(
            lambda dask_scheduler: key not in dask_scheduler.steps.tasks
        )

    before = followed.run_on_scheduler(bound, 3)
    try:
        with span("held", "inner"):
            held = followed.submit(inc, 1, key="held-1")
        held.result()
        for number in range(6):
            key = f"passing{number}-1"
            with span(f"passing-{number}", "inner"):
                assert followed.submit(inc, number, key=key).result() == number + 1
            until(partial(is_forgotten, key), "the task is forgotten")
        found = followed.run_on_scheduler(names)
        assert {("held",), ("held", "inner"), ("passing-5", "inner")} <= found
        assert len([name for name in found if len(name) == 1]) == 3
    finally:
        followed.run_on_scheduler(bound, before)


def test_a_computation_has_its_code_and_annotations(followed):
    with (
        dask.config.set({"distributed.diagnostics.computations.nframes": 1}),
        dask.annotate(colour="red"),
    ):
        future = followed.submit(inc, 1, key="shown")
    assert future.result() == 2

    def look(dask_scheduler: Any) -> Any:
        computation = dask_scheduler.computations[-1]
        (code,) = computation.code
        task = dask_scheduler.tasks["shown"]
        names = {group.name for group in computation.groups}
        return code[-1].code, computation.annotations, task.annotations, names

    code, annotations, of_task, names = followed.run_on_scheduler(look)
    assert 'followed.submit(inc, 1, key="shown")' in code
    assert annotations == of_task == {"colour": "red"}
    assert names == {"shown"}


def test_what_is_not_followed_says_how_to():
    with (
        treadle.Client(n_workers=1, processes=False) as client,
        pytest.raises(NotImplementedError, match=r"treadle\.scheduler\.steps"),
    ):
        client.run_on_scheduler(lambda dask_scheduler: dask_scheduler.computations)


class Notes(WorkerPlugin):
    """Writes into the metadata of tasks."""

    name = "notes"

    def setup(self, worker: Any) -> None:
        self.worker = worker

    def transition(self, key: Any, start: str, finish: str, **_: Any) -> None:
        if "executing" in (start, finish):
            self.worker.state.tasks[key].metadata[finish] = start


def test_what_worker_plugins_write_of_a_task_is_seen(followed):
    followed.register_plugin(Notes())
    try:
        with get_task_metadata() as seen:
            future = followed.submit(inc, 1, key="noted")
            assert future.result() == 2
    finally:
        followed.unregister_worker_plugin("notes")
    assert seen.metadata == {"noted": {"executing": "ready", "memory": "executing"}}
    assert seen.state == {"noted": "memory"}
    of_task = followed.run_on_scheduler(
        lambda dask_scheduler: dask_scheduler.tasks["noted"].metadata
    )
    assert of_task == seen.metadata["noted"]


def test_small_values_keep_what_they_were_made_from(followed):
    first = followed.submit(inc, 1, key="made")
    last = followed.submit(inc, first, key="of-made")
    assert last.result() == 3
    assert followed.recreate_task_locally(last) == 3
    first.release()

    def state(dask_scheduler: Any) -> Any:
        task = dask_scheduler.tasks["of-made"]
        return {task.key: task.state for task in task.dependencies}

    until(
        lambda: followed.run_on_scheduler(state) == {"made": "released"}, "nobody needs its value"
    )
    # It can be made anew.
    assert followed.submit(inc, 1, key="made").result() == 2


def test_steps_that_were_dropped_are_made_up_for(followed):
    kept = followed.submit(inc, 1, key="kept-by-steps")
    assert kept.result() == 2

    def drop(dask_scheduler: Any) -> Any:
        steps = dask_scheduler.steps
        steps.sync()
        # As if it had gone meanwhile, and another one had come.
        steps.tasks["gone-by-now"] = steps._task("gone-by-now")
        del steps.tasks["kept-by-steps"]
        steps.told({"steps": [], "dropped": 5})
        steps.sync()
        (line,) = [text for _, text in dask_scheduler.get_logs() if "5 steps" in text]
        return steps.tasks["kept-by-steps"].state, "gone-by-now" in steps.tasks, line

    state, is_there, line = followed.run_on_scheduler(drop)
    assert (state, is_there) == ("memory", False)
    assert "dropped" in line


@pytest.mark.filterwarnings("ignore:Scheduler already contains a plugin")
def test_a_plugin_is_told_steps_though_the_first_one_could_not_ask_for_them():
    def fail_once(dask_scheduler: Any) -> None:
        def ask_now(operation: str, argument: Any) -> Any:
            if operation == "observe":
                del dask_scheduler.ask_now
                raise TimeoutError("the scheduler has not answered")
            return type(dask_scheduler).ask_now(dask_scheduler, operation, argument)

        dask_scheduler.ask_now = ask_now

    with treadle.Client(n_workers=1, threads_per_worker=1, processes=False) as client:
        client.run_on_scheduler(fail_once)
        with pytest.raises(TimeoutError, match="has not answered"):
            client.register_plugin(Transitions())
        client.register_plugin(Transitions())
        assert client.submit(inc, 1, key="followed").result() == 2
        assert ("followed", "memory") in {(step[0], step[2]) for step in told(client)}
