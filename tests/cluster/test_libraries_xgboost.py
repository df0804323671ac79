"""`xgboost.dask`: models trained by the workers together are as good as those of one process."""

from __future__ import annotations

import asyncio

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest

from client_support import SOON, client_class

xgboost = pytest.importorskip("xgboost")
metrics = pytest.importorskip("sklearn.metrics")
datasets = pytest.importorskip("sklearn.datasets")
from xgboost import dask as dxgb  # noqa: E402

# They train in seconds, but import a lot first.
pytestmark = pytest.mark.timeout(180, method="signal")

PARAMETERS = {"tree_method": "hist", "max_depth": 4, "objective": "reg:squarederror"}


def regression():
    x, y = datasets.make_regression(2000, 8, n_informative=5, noise=1.0, random_state=0)
    return x, y, da.from_array(x, chunks=(500, 8)), da.from_array(y, chunks=500)


def classes():
    x, y = datasets.make_classification(2000, 8, n_informative=6, n_classes=3, random_state=0)
    return x, y, da.from_array(x, chunks=(500, 8)), da.from_array(y, chunks=500)


@pytest.fixture(scope="module")
def expected():
    """What a model of one process explains of the data."""
    x, y, _, _ = regression()
    alone = xgboost.train(PARAMETERS, xgboost.DMatrix(x, y), 20)
    return metrics.r2_score(y, alone.predict(xgboost.DMatrix(x)))


def test_train_and_predict(client, expected):
    _, y, dx, dy = regression()
    data = dxgb.DaskDMatrix(client, dx, dy)
    trained = dxgb.train(client, PARAMETERS, data, 20, evals=[(data, "train")])
    assert len(trained["history"]["train"]["rmse"]) == 20
    for predicted in (
        dxgb.predict(client, trained, dx),
        dxgb.predict(client, trained["booster"], data),
        dxgb.inplace_predict(client, trained, dx),
        dxgb.predict(client, client.scatter(trained["booster"]), dx),
    ):
        assert isinstance(predicted, da.Array)
        assert metrics.r2_score(y, predicted.compute()) == pytest.approx(expected, abs=0.01)
    assert dxgb.predict(client, trained, dx, pred_contribs=True).compute().shape == (2000, 9)


def test_early_stopping_on_quantiles(client):
    _, y, dx, dy = regression()
    train = dxgb.DaskQuantileDMatrix(client, dx[:1000], dy[:1000])
    valid = dxgb.DaskQuantileDMatrix(client, dx[1000:], dy[1000:], ref=train)
    trained = dxgb.train(
        client,
        {**PARAMETERS, "eta": 0.9},
        train,
        500,
        evals=[(train, "train"), (valid, "valid")],
        early_stopping_rounds=3,
        verbose_eval=False,
    )
    best = trained["booster"].best_iteration
    losses = trained["history"]["valid"]["rmse"]
    assert best == int(np.argmin(losses))
    assert len(losses) == best + 4 < 500
    assert metrics.r2_score(y, dxgb.predict(client, trained, dx).compute()) > 0.9


def test_training_goes_on(client):
    _, _, dx, dy = regression()
    data = dxgb.DaskDMatrix(client, dx, dy)
    first = dxgb.train(client, PARAMETERS, data, 5)
    second = dxgb.train(client, PARAMETERS, data, 3, xgb_model=first["booster"])
    assert second["booster"].num_boosted_rounds() == 8


def test_regressor(client, expected):
    _, y, dx, dy = regression()
    model = dxgb.DaskXGBRegressor(n_estimators=20, max_depth=4)
    model.client = client
    model.fit(dx, dy, eval_set=[(dx, dy)], verbose=False)
    assert metrics.r2_score(y, model.predict(dx).compute()) == pytest.approx(expected, abs=0.01)
    assert len(model.evals_result()["validation_0"]["rmse"]) == 20
    assert model.apply(dx).compute().shape == (2000, 20)


def test_classifier(client):
    x, y, dx, dy = classes()
    alone = xgboost.XGBClassifier(n_estimators=20, max_depth=4).fit(x, y)
    together = dxgb.DaskXGBClassifier(n_estimators=20, max_depth=4).fit(dx, dy)
    assert list(together.classes_) == [0, 1, 2]
    assert together.predict_proba(dx).compute().shape == (2000, 3)
    found = metrics.accuracy_score(y, together.predict(dx).compute())
    assert found == pytest.approx(metrics.accuracy_score(y, alone.predict(x)), abs=0.02)


def test_dataframes(client):
    x, y, _, _ = classes()
    frame = pd.DataFrame(x, columns=[f"c{i}" for i in range(8)]).assign(y=y)
    lazy = dd.from_pandas(frame, npartitions=4)
    model = dxgb.DaskXGBClassifier(n_estimators=20, max_depth=4)
    model.fit(lazy.drop(columns="y"), lazy.y)
    predicted = model.predict(lazy.drop(columns="y")).compute()
    assert metrics.accuracy_score(y, predicted) > 0.85


def ranking():
    random = np.random.default_rng(0)
    frame = pd.DataFrame(random.random((1000, 3)), columns=list("abc"))
    return frame.assign(
        relevance=(frame.a * 4).astype(int), query=np.sort(random.integers(0, 50, 1000))
    )


@pytest.mark.parametrize("split", [True, False])
def test_ranker(client, split):
    stats = pytest.importorskip("scipy.stats")
    frame = ranking()
    lazy = dd.from_pandas(frame, npartitions=4)
    model = dxgb.DaskXGBRanker(n_estimators=10, allow_group_split=split)
    model.fit(lazy[list("abc")], lazy.relevance, qid=lazy["query"])
    predicted = model.predict(lazy[list("abc")]).compute()
    assert stats.spearmanr(predicted, frame.relevance).correlation > 0.95


def test_an_asynchronous_client(client, expected):
    _, y, dx, dy = regression()

    async def run():
        address = client.scheduler_info()["address"]
        async with client_class()(address, asynchronous=True) as c:
            data = await dxgb.DaskDMatrix(c, dx, dy)
            trained = await dxgb.train(c, PARAMETERS, data, 20)
            predicted = await c.compute(await dxgb.predict(c, trained, dx))
            model = dxgb.DaskXGBRegressor(n_estimators=20, max_depth=4)
            model.client = c
            await model.fit(dx, dy)
            return predicted, await c.compute(await model.predict(dx))

    for predicted in asyncio.run(asyncio.wait_for(run(), 2 * SOON)):
        assert metrics.r2_score(y, predicted) == pytest.approx(expected, abs=0.01)


def test_parameters_that_are_wrong(fresh_client):
    _, _, dx, dy = regression()
    data = dxgb.DaskDMatrix(fresh_client, dx, dy)
    with pytest.raises(xgboost.core.XGBoostError, match="Unknown objective"):
        dxgb.train(fresh_client, {"objective": "no such"}, data, 2)
