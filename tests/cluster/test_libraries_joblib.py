"""joblib's backend on distributed, and scikit-learn's models through it."""

from __future__ import annotations

import os

import joblib
import numpy as np
import pytest
from joblib import Parallel, delayed, parallel_backend, parallel_config

from client_support import SOON, Gate, add, fail, inc, pass_gate


def where(x):
    return os.getpid()


def total(data, by):
    return float(data.sum()) * by


def nested(n):
    return sum(Parallel()(delayed(inc)(i) for i in range(n)))


def backend_of_joblib():
    return type(joblib.parallel.get_active_backend()[0]).__name__


@pytest.mark.parametrize("context", [parallel_config, parallel_backend])
def test_calls_run_on_the_workers(client, context):
    with context("dask"):
        assert Parallel()(delayed(inc)(i) for i in range(50)) == list(range(1, 51))
        pids = set(Parallel(batch_size=1)(delayed(where)(i) for i in range(8)))
    assert pids <= set(client.run(os.getpid).values())


def test_the_number_of_jobs_is_that_of_the_threads(client):
    with parallel_config("dask"):
        assert joblib.effective_n_jobs() == 2


def test_equal_calls_are_all_run(client, gate):
    def f(gate, value):
        gate.arrive()
        return value

    with parallel_config("dask"):
        assert Parallel(batch_size=1)(delayed(f)(gate, 1) for _ in range(5)) == [1] * 5
    assert len(gate.arrivals()) == 5


def test_errors_are_raised_where_the_results_are_wanted(fresh_client):
    with parallel_config("dask"), pytest.raises(ValueError, match="in joblib"):
        Parallel()(delayed(fail)("in joblib") for _ in range(3))
    with parallel_config("dask"):
        assert Parallel()(delayed(inc)(i) for i in range(3)) == [1, 2, 3]


def test_calls_in_calls(client):
    with parallel_config("dask"):
        assert Parallel(batch_size=1)(delayed(nested)(n) for n in range(6)) == [
            n * (n + 1) // 2 for n in range(6)
        ]
        found = Parallel()(delayed(backend_of_joblib)() for _ in range(2))
    assert set(found) == {"DaskDistributedBackend"}


def test_a_task_uses_joblib(client):
    def f():
        with parallel_config("dask"):
            return Parallel()(delayed(inc)(i) for i in range(4))

    assert client.submit(f, pure=False).result(timeout=SOON) == [1, 2, 3, 4]


def test_scattered_arguments(client):
    data = np.arange(100_000)
    with parallel_config("dask", scatter=[data]):
        found = Parallel()(delayed(total)(data, i) for i in range(4))
    assert found == [data.sum() * i for i in range(4)]
    with pytest.raises(TypeError, match="scatter must be a list"):
        parallel_config("dask", scatter=1)


class Large:
    """joblib takes it to be large, and it counts how often it is pickled."""

    pickled = 0

    def __sizeof__(self):
        return 1 << 20

    def __reduce__(self):
        self.pickled += 1
        return Large, ()

    def __radd__(self, other):
        return other


def test_large_arguments_are_sent_once(client):
    large = Large()
    with parallel_config("dask"):
        found = Parallel(batch_size=1)(delayed(add)(i, large) for i in range(6))
    assert found == list(range(6))
    assert large.pickled == 1


@pytest.mark.parametrize("return_as", ["generator", "generator_unordered"])
def test_results_as_they_come(client, return_as):
    with parallel_config("dask"):
        found = Parallel(return_as=return_as)(delayed(inc)(i) for i in range(20))
    assert sorted(found) == list(range(1, 21))


def test_the_first_that_is_there_is_the_first(client, gate: Gate):
    with parallel_config("dask"):
        found = Parallel(return_as="generator_unordered", batch_size=1)(
            [delayed(pass_gate)(gate, "slow"), delayed(add)("fa", "st")]
        )
        assert next(found) == "fast"
        gate.open()
        assert list(found) == ["slow"]


def test_keywords_are_those_of_submit(client, workers):
    with parallel_config("dask", workers=workers[0]):
        pids = Parallel(batch_size=1)(delayed(where)(i) for i in range(6))
    assert set(pids) == {client.run(os.getpid)[workers[0]]}


def test_a_client_of_ones_own(client, second_client):
    with parallel_config("dask", client=second_client):
        assert Parallel()(delayed(inc)(i) for i in range(3)) == [1, 2, 3]


def test_many_small_calls_are_batched(client):
    with parallel_config("dask"), Parallel() as parallel:
        for _ in range(3):
            assert parallel(delayed(inc)(i) for i in range(200)) == list(range(1, 201))
        assert parallel._backend.compute_batch_size() > 1


def test_no_workers_in_time(new_client):
    new_client(workers=0)
    with (
        parallel_config("dask", wait_for_workers_timeout=0.1),
        pytest.raises(TimeoutError, match="no worker after"),
    ):
        Parallel()(delayed(inc)(i) for i in range(3))


def test_nothing_is_left(client, eventually):
    with parallel_config("dask"):
        Parallel()(delayed(inc)(i) for i in range(20))
    eventually(lambda: not client.who_has())


def test_a_search_of_parameters(client):
    model_selection = pytest.importorskip("sklearn.model_selection")
    from sklearn.datasets import make_classification
    from sklearn.tree import DecisionTreeClassifier

    x, y = make_classification(400, 8, random_state=0)
    grid = {"max_depth": [1, 2, 4], "min_samples_leaf": [1, 10]}

    def search():
        return model_selection.GridSearchCV(
            DecisionTreeClassifier(random_state=0), grid, cv=3, n_jobs=-1
        ).fit(x, y)

    alone = search()
    with parallel_config("dask"):
        found = search()
    assert found.best_params_ == alone.best_params_
    assert found.cv_results_["mean_test_score"] == pytest.approx(
        alone.cv_results_["mean_test_score"]
    )


def test_a_forest_of_trees(client):
    ensemble = pytest.importorskip("sklearn.ensemble")
    x = np.random.default_rng(0).normal(size=(300, 5))
    y = x[:, 0] + x[:, 1] ** 2
    forests = [ensemble.RandomForestRegressor(20, random_state=1, n_jobs=-1) for _ in range(2)]
    forests[0].fit(x, y)
    with parallel_config("dask"):
        forests[1].fit(x, y)
        predicted = forests[1].predict(x)
    assert predicted == pytest.approx(forests[0].predict(x))
