"""xarray's arrays on workers, and its locks."""

from __future__ import annotations

import numpy as np
import pytest
from distributed import Lock, futures_of, wait

from client_support import addresses

xarray = pytest.importorskip("xarray")
pytest.importorskip("scipy")


@pytest.fixture
def dataset():
    random = np.random.default_rng(0)
    return xarray.Dataset(
        {"t": (("time", "x"), random.random((12, 6))), "p": (("x",), np.arange(6.0))},
        coords={"time": np.arange(12), "x": np.arange(6)},
    )


def test_compute_and_persist(client, dataset):
    lazy = dataset.chunk({"time": 3})
    xarray.testing.assert_allclose((lazy + 1).mean("time").compute(), (dataset + 1).mean("time"))
    held = (lazy * 2).persist()
    wait(held)
    futures = futures_of(held)
    assert len(futures) == 5
    assert {future.status for future in futures} == {"finished"}
    assert set().union(*client.who_has(futures).values()) <= set(addresses(client))
    xarray.testing.assert_identical(held.load(), dataset * 2)


def test_a_dataset_is_one_future(client, dataset):
    lazy = dataset.chunk({"time": 4})
    xarray.testing.assert_identical(client.compute(lazy).result(), dataset)


def test_blocks_and_functions(client, dataset):
    lazy = dataset.chunk({"time": 3})
    mapped = xarray.map_blocks(lambda part: part.t + part.time, lazy, template=lazy.t)
    xarray.testing.assert_allclose(mapped.compute(), dataset.t + dataset.time)
    applied = xarray.apply_ufunc(
        np.square, lazy.t, dask="parallelized", output_dtypes=[lazy.t.dtype]
    )
    xarray.testing.assert_allclose(applied.compute(), dataset.t**2)


def test_groups_and_rolling_windows(client, dataset):
    lazy = dataset.chunk({"time": 4})
    xarray.testing.assert_allclose(
        lazy.t.groupby(lazy.time % 3).mean().compute(),
        dataset.t.groupby(dataset.time % 3).mean(),
    )
    xarray.testing.assert_allclose(
        lazy.t.rolling(time=3).mean().compute(), dataset.t.rolling(time=3).mean()
    )


def test_many_files_are_one_dataset(client, dataset, tmp_path):
    for i in range(4):
        part = dataset.isel(time=slice(3 * i, 3 * i + 3))
        part.to_netcdf(tmp_path / f"{i}.nc", engine="scipy")
    with xarray.open_mfdataset(
        str(tmp_path / "*.nc"), engine="scipy", parallel=True, combine="nested",
        concat_dim="time", data_vars="minimal", compat="override", coords="minimal",
    ) as opened:  # fmt: skip
        xarray.testing.assert_allclose(opened.load(), dataset)


def test_the_files_lock_is_the_clusters(client, tmp_path):
    from xarray.backends import locks

    if not hasattr(locks, "get_dask_scheduler"):
        pytest.skip("this xarray has another name for it")
    assert locks.get_dask_scheduler() == "distributed"
    lock = locks.get_write_lock(str(tmp_path / "file.nc"))
    assert isinstance(lock, Lock)
    with lock:
        assert lock.locked()
    assert not lock.locked()
