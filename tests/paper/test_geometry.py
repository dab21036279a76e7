"""Geometry for small c: the boundary that decides what two factors can express."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from paper.geometry import loadings_towards, unit_rates, upper_right_hull
from scipy.spatial import ConvexHull

from log1pnmf.model.link import ShiftedLog


def test_example_of_the_paper():
    """Figure of the appendix: five vertices, the dashed part of the hull is left out."""
    vertices = [(0.75, 5.2), (2, 5), (3.75, 4.25), (5.1, 2.9), (5.8, 1.7)]
    others = [(0.25, 4.5), (0.5, 2.5), (1, 1), (3.0, 0.8), (5.2, 1.0), (1.2, 3.7), (2, 2.5), (3.8, 2.8)]
    found = upper_right_hull(others + vertices)
    assert found.tolist() == [8, 9, 10, 11, 12]


def test_boundary_is_part_of_the_hull():
    points = np.random.default_rng(0).exponential(size=(300, 2))
    assert set(upper_right_hull(points)) <= set(ConvexHull(points).vertices)


@given(arrays(np.float64, st.tuples(st.integers(1, 12), st.just(2)), elements=st.integers(0, 6)))
def test_maxima_of_all_positive_weights(points):
    """On a small grid, with ties and points in line: no weight has its maximum elsewhere, none is missed."""
    hull = points[upper_right_hull(points)]
    assert (np.diff(hull[:, 0]) > 0).all()
    assert (np.diff(hull[:, 1]) < 0).all()
    for angle in np.linspace(0.01, np.pi / 2 - 0.01, 25):
        weights = np.array([np.cos(angle), np.sin(angle)])
        assert (hull @ weights).max() == pytest.approx((points @ weights).max(), abs=1e-12)
    slopes = np.diff(hull[:, 1]) / np.diff(hull[:, 0])
    assert (np.diff(slopes) < 0).all()  # strictly concave: nothing that is no vertex


def test_factors_with_a_common_peak_express_one_direction():
    points = np.vstack([np.random.default_rng(1).uniform(size=(50, 2)), [2.0, 2.0]])
    assert upper_right_hull(points).tolist() == [50]


def test_any_direction_reaches_only_neighbours():
    """Theorem 4: with growing loadings all rates but those of two neighbours vanish, and c falls to zero."""
    points = np.random.default_rng(2).exponential(size=(40, 2))
    hull = upper_right_hull(points)
    for angle in np.linspace(0.02, np.pi / 2 - 0.02, 50):
        rates, c = unit_rates(points, 1e4 * np.array([np.cos(angle), np.sin(angle)]))
        used = np.flatnonzero(rates > 1e-6)
        assert set(used) <= set(hull)
        places = np.searchsorted(points[hull, 0], points[used, 0])
        assert np.ptp(places) <= 1
        assert c < 1e-300


@pytest.mark.parametrize("share", [0.1, 0.5, 0.99])
def test_every_mixture_of_neighbours_is_reached(share):
    points = np.random.default_rng(3).exponential(size=(40, 2))
    hull = upper_right_hull(points).tolist()
    assert len(hull) > 2
    for edge in pairwise(hull):
        rates, _ = unit_rates(points, loadings_towards(points, edge, share=share, scale=1e5))
        expected = np.zeros(40)
        expected[list(edge)] = share, 1 - share
        np.testing.assert_allclose(rates, expected, atol=1e-6)


def test_rates_are_those_of_the_link():
    points, loadings = np.random.default_rng(4).uniform(size=(20, 2)), np.array([3.0, 1.0])
    rates, c = unit_rates(points, loadings)
    np.testing.assert_allclose(rates, ShiftedLog(c).inverse(points @ loadings), rtol=1e-12)
    assert rates.sum() == pytest.approx(1.0)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: upper_right_hull([[1.0, 2.0, 3.0]]), "two columns"),
        (lambda: upper_right_hull([[1.0, np.nan]]), "finite"),
        (lambda: unit_rates([[1.0, 2.0]], [0.0, 0.0]), "positive rate"),
        (lambda: loadings_towards([[0, 3], [3, 0]], (1, 0)), "right and down"),
        (lambda: loadings_towards([[0, 3], [3, 0]], (0, 1), share=1.0), "share"),
        (lambda: loadings_towards([[0, 3], [3, 0]], (0, 1), share=1e-9, scale=1e-3), "scale"),
    ],
)
def test_refusals(call, message):
    with pytest.raises(ValueError, match=message):
        call()
