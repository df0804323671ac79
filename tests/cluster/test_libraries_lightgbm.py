"""`lightgbm.dask`: models trained by the workers together are as good as those of one process."""

from __future__ import annotations

import pickle

import cloudpickle
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from distributed import wait

from client_support import addresses
from ports import free_port

lightgbm = pytest.importorskip("lightgbm")
metrics = pytest.importorskip("sklearn.metrics")
datasets = pytest.importorskip("sklearn.datasets")

# They train in seconds, but import a lot first.
pytestmark = pytest.mark.timeout(180, method="signal")

SMALL = {"n_estimators": 20, "num_leaves": 15, "verbose": -1, "random_state": 0}


def regression():
    x, y = datasets.make_regression(2000, 8, n_informative=5, noise=1.0, random_state=0)
    return x, y, da.from_array(x, chunks=(500, 8)), da.from_array(y, chunks=500)


def classes():
    x, y = datasets.make_classification(2000, 8, n_informative=6, n_classes=3, random_state=0)
    return x, y, da.from_array(x, chunks=(500, 8)), da.from_array(y, chunks=500)


def test_regression(client):
    x, y, dx, dy = regression()
    alone = lightgbm.LGBMRegressor(**SMALL).fit(x, y)
    together = lightgbm.DaskLGBMRegressor(client=client, **SMALL).fit(dx, dy)
    predicted = together.predict(dx)
    assert isinstance(predicted, da.Array)
    expected = metrics.r2_score(y, alone.predict(x))
    assert metrics.r2_score(y, predicted.compute()) == pytest.approx(expected, abs=0.03)
    local = together.to_local()
    assert local.predict(x) == pytest.approx(predicted.compute())


def test_the_client_is_the_default_one(client):
    _, y, dx, dy = regression()
    model = lightgbm.DaskLGBMRegressor(**SMALL).fit(dx, dy)
    assert model.client_ is client
    assert metrics.r2_score(y, model.predict(dx).compute()) > 0.8


def test_classes_with_an_evaluation(client):
    x, y, dx, dy = classes()
    alone = lightgbm.LGBMClassifier(**SMALL).fit(x, y)
    together = lightgbm.DaskLGBMClassifier(client=client, **SMALL)
    together.fit(dx, dy, eval_set=[(dx, dy)], eval_metric="multi_logloss")
    expected = metrics.accuracy_score(y, alone.predict(x))
    found = metrics.accuracy_score(y, together.predict(dx).compute())
    assert found == pytest.approx(expected, abs=0.03)
    assert together.predict_proba(dx).compute().shape == (2000, 3)
    assert list(together.classes_) == [0, 1, 2]
    losses = together.evals_result_["valid_0"]["multi_logloss"]
    assert len(losses) == 20
    assert losses[-1] < losses[0]


def test_a_dataframe_with_weights(client):
    x, y, _, _ = classes()
    frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(8)])
    frame["c0"] = pd.Categorical((frame.c0 * 2).round().clip(-3, 3).astype(int))
    features = dd.from_pandas(frame, npartitions=4)
    labels = dd.from_pandas(pd.Series(y), npartitions=4)
    weights = dd.from_pandas(pd.Series(np.where(y == 0, 2.0, 1.0)), npartitions=4)
    model = lightgbm.DaskLGBMClassifier(client=client, **SMALL)
    model.fit(features, labels, sample_weight=weights)
    predicted = model.predict(features)
    assert metrics.accuracy_score(y, predicted.compute()) > 0.85


def test_a_ranking(client):
    stats = pytest.importorskip("scipy.stats")
    random = np.random.default_rng(0)
    x = random.random((500, 5))
    y = (x[:, 0] * 4).astype(int)
    groups = np.repeat(10, 50)
    small = {"n_estimators": 10, "verbose": -1, "min_child_samples": 1}
    alone = lightgbm.LGBMRanker(**small).fit(x, y, group=groups)
    dx, dy = da.from_array(x, chunks=(250, 5)), da.from_array(y, chunks=250)
    together = lightgbm.DaskLGBMRanker(client=client, **small)
    together.fit(dx, dy, group=da.from_array(groups, chunks=25))
    expected = stats.spearmanr(alone.predict(x), y).correlation
    found = stats.spearmanr(together.predict(dx).compute(), y).correlation
    assert found == pytest.approx(expected, abs=0.03)


def test_a_model_passes_through_pickle(client):
    _, _, dx, dy = regression()
    model = lightgbm.DaskLGBMRegressor(client=client, **SMALL).fit(dx, dy)
    other = pickle.loads(cloudpickle.dumps(model))
    assert other.predict(dx).compute() == pytest.approx(model.predict(dx).compute())


def test_data_that_the_workers_hold(client, workers):
    _, y, dx, dy = regression()
    dx, dy = client.persist([dx, dy])
    wait([dx, dy])
    client.rebalance()
    machines = ",".join(f"127.0.0.1:{free_port()}" for _ in workers)
    model = lightgbm.DaskLGBMRegressor(client=client, machines=machines, **SMALL).fit(dx, dy)
    assert metrics.r2_score(y, model.predict(dx).compute()) > 0.8
    assert set(addresses(client)) == set(workers)


def test_parameters_that_are_wrong(fresh_client):
    _, _, dx, dy = regression()
    model = lightgbm.DaskLGBMRegressor(client=fresh_client, objective="no such", verbose=-1)
    with pytest.raises(lightgbm.basic.LightGBMError, match="Unknown objective"):
        model.fit(dx, dy)
