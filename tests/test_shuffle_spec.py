"""What a graph says of a shuffle."""

import pandas as pd
import pytest
from distributed.shuffle._rechunk import ArrayRechunkSpec
from distributed.shuffle._shuffle import DataFrameShuffleSpec

from treadle.shuffle import _spec
from treadle.shuffle._spec import ArraySpec, FrameSpec, describe, position, read_spec

META = pd.DataFrame({"a": [1.5], "where": [0]}, index=pd.Index([4], name="i"))


def frames(parts_out, npartitions=8, **options):
    return DataFrameShuffleSpec(
        id="s",
        disk=True,
        npartitions=npartitions,
        column="where",
        meta=META,
        parts_out=parts_out,
        **{"drop_column": True, **options},
    )


@pytest.mark.parametrize(
    ("parts_out", "ranges"),
    [
        (8, [(0, 8)]),
        (range(2, 5), [(2, 5)]),
        ([7, 1, 2, 5, 1], [(1, 3), (5, 6), (7, 8)]),
        ((), []),
    ],
)
def test_outputs_of_frames(parts_out, ranges):
    partitions, outputs, data = describe(frames(parts_out, drop_column=False))
    assert (partitions, outputs) == (8, ranges)
    told = read_spec(data)
    assert isinstance(told, FrameSpec)
    assert (told.column, told.partitions, told.drop_column) == ("where", 8, False)
    pd.testing.assert_frame_equal(told.meta, META.iloc[:0])


def test_meta_that_only_cloudpickle_knows():
    class Name(str):
        pass

    spec = frames(8)
    spec.meta.attrs["name"] = Name("x")
    assert read_spec(describe(spec)[2]).meta.attrs["name"] == "x"


def test_meta_that_fits_into_no_message(monkeypatch):
    _, _, data = describe(frames(8))
    monkeypatch.setattr(_spec, "_MOST_BYTES", len(data))
    assert describe(frames(8))[2] == data
    monkeypatch.setattr(_spec, "_MOST_BYTES", len(data) - 1)
    with pytest.raises(ValueError, match=f"Shuffle s: .* takes {len(data)} bytes"):
        describe(frames(8))


def test_more_partitions_than_messages_can_have():
    assert describe(frames(2**20, 2**20))[0] == 2**20
    for partitions in (2**20 + 1, 2**32):
        with pytest.raises(
            ValueError, match=f"Shuffle s: it has {partitions} partitions, and at most"
        ):
            describe(frames(2, partitions))


def test_outputs_of_arrays():
    nan = float("nan")
    spec = ArrayRechunkSpec(id="s", disk=True, old=((2, 2, 2), (nan,)), new=((3, 3), (nan,)))
    partitions, outputs, data = describe(spec)
    assert (partitions, outputs) == (2, [(0, 2)])
    told = read_spec(data)
    assert isinstance(told, ArraySpec)
    assert (told.old[0], told.new[0]) == ((2, 2, 2), (3, 3))


def test_positions_are_row_major():
    chunks = ((1, 1), (1, 1, 1))
    assert [position((i, j), chunks) for i in range(2) for j in range(3)] == list(range(6))


def test_outputs_that_do_not_exist():
    with pytest.raises(ValueError, match="has 8 partitions, and its graph reads others: 3 to 8"):
        describe(frames([3, 8]))


def test_other_specs():
    class Spec:
        id = "s"

    with pytest.raises(TypeError, match="Shuffle s is of an unknown kind: Spec"):
        describe(Spec())
