"""Rows that are not in memory behave as arrays do."""

import numpy as np
import pytest

from log1pnmf._common import arrays as rows_module
from log1pnmf._common.arrays import ROWS_TOGETHER, RowFile, Rows, column_sums, extrapolated


@pytest.fixture
def pair():
    rng = np.random.default_rng(0)
    return rng.normal(size=(23, 3)), rng.normal(size=(23, 3))


def test_operators_are_those_of_arrays(pair):
    a, b = pair
    lazy, other, scale = Rows.of(a), Rows.of(b), np.array([1.0, 2.0, 4.0])
    for result, expected in [
        (lazy + other, a + b),
        (lazy - b, a - b),
        (b - lazy, b - a),
        (0.5 * lazy, 0.5 * a),
        (scale * lazy, scale * a),
        (lazy / scale, a / scale),
        (abs(lazy), np.abs(a)),
        (lazy * (lazy <= 0), a * (a <= 0)),
        (lazy * (lazy >= other), a * (a >= b)),
        (lazy.clip(min=0.1 * other).clip(max=0.7), np.minimum(np.maximum(a, 0.1 * b), 0.7)),
        (lazy * (b[:, :1] > 0), a * (b[:, :1] > 0)),
    ]:
        np.testing.assert_array_equal(np.asarray(result), expected)
    np.testing.assert_allclose(lazy.mean(axis=0), a.mean(axis=0))
    np.testing.assert_allclose(lazy.sum(axis=0), a.sum(axis=0))
    np.testing.assert_array_equal(lazy.max(axis=0), a.max(axis=0))


def test_blocks_make_up_the_whole():
    a = np.random.default_rng(0).normal(size=(3000, 800))  # more than two blocks
    lazy = 2.0 * Rows.of(a)
    blocks = list(lazy.blocks())
    assert [start for start, _ in blocks] == np.cumsum(
        [0, *(len(block) for _, block in blocks[:-1])]
    ).tolist()
    assert len(blocks) > 2
    np.testing.assert_array_equal(np.concatenate([block for _, block in blocks]), 2.0 * a)
    np.testing.assert_allclose(lazy.sum(axis=0), 2.0 * a.sum(axis=0), rtol=1e-11)
    np.testing.assert_array_equal(lazy.max(axis=0), 2.0 * a.max(axis=0))


def test_files_hold_what_was_written_in_any_order(pair, tmp_path):
    a, _ = pair
    file = RowFile(a.shape, folder=str(tmp_path))
    for start, stop in ((10, 23), (0, 4), (4, 4), (4, 10)):
        file.write(start, a[start:stop])
    np.testing.assert_array_equal(file.read(3, 20), a[3:20])
    np.testing.assert_array_equal(np.asarray(file.rows()), a)
    assert list(tmp_path.iterdir()) == []  # it has no name, so nothing is left behind


def test_large_matrices_come_as_files(pair, monkeypatch):
    a, _ = pair
    monkeypatch.setattr(rows_module, "IN_MEMORY", 1)
    array = (2.0 * Rows.of(a)).to_array()
    assert isinstance(array, np.memmap)
    np.testing.assert_array_equal(array, 2.0 * a)


# ---------- sums over the rows of arrays, wherever they live


@pytest.mark.parametrize("n_rows", [0, 1, ROWS_TOGETHER - 1, ROWS_TOGETHER, 5 * ROWS_TOGETHER + 7])
def test_sums_of_columns(n_rows):
    array = np.random.default_rng(0).uniform(-1.0, 1.0, (n_rows, 3))
    expected = [float(sum(column)) for column in array.T.tolist()]
    for one in (array, np.asfortranarray(array), array.repeat(2, axis=1)[:, ::2], Rows.of(array)):
        np.testing.assert_allclose(column_sums(one), expected, rtol=1e-12, atol=1e-13)


def test_extrapolation_is_the_same_for_all_kinds_of_arrays():
    to, since = np.random.default_rng(0).gamma(0.5, 1.0, (2, 200, 4))
    expected = np.maximum(to + 0.7 * (to - since), 0.1 * to)
    for one in (to, np.asfortranarray(to), to.repeat(2, axis=1)[:, ::2]):
        np.testing.assert_allclose(extrapolated(one, since, 0.7, 0.1), expected, rtol=1e-13)
    rows = extrapolated(Rows.of(to), Rows.of(since), 0.7, 0.1)
    np.testing.assert_allclose(rows.to_array(), expected, rtol=1e-13)
    with pytest.raises(TypeError, match="incompatible function arguments"):
        extrapolated(to, Rows.of(since), 0.7, 0.1)
