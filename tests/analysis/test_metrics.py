"""Metrics: their values where they are known, and what must not change them."""

import numpy as np
import pandas as pd
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays
from scipy.stats import poisson, spearmanr

from log1pnmf import Log1pNMF, ShiftedLog, dominant_factor, fit_log1p_nmf, shares
from log1pnmf.analysis import topic_model
from log1pnmf.analysis.metrics import (
    correlation_matrix,
    deviance_explained,
    effective_factors,
    factor_correlation,
    hoyer,
    log_likelihood,
    match_factors,
)

TABLES = arrays(
    np.float64, st.tuples(st.integers(2, 12), st.integers(1, 5)), elements=st.floats(0, 100, width=32)
)


@pytest.fixture
def table():
    return np.random.default_rng(0).gamma(0.5, size=(40, 5))


@pytest.fixture(scope="module")
def counts():
    rng = np.random.default_rng(1)
    loadings, factors = rng.gamma(0.4, size=(30, 3)), rng.gamma(0.4, size=(25, 3))
    return rng.poisson(np.expm1(loadings @ factors.T))


class TestReadingLoadings:
    """Three groups of samples with features of their own, beside features that all have about alike."""

    GROUPS = np.repeat([0, 1, 2], 20)

    def cells(self, c):
        rng = np.random.default_rng(0)
        own = (self.GROUPS[:, None] == np.arange(3)) * rng.uniform(0.3, 1.0, (60, 1))
        loadings = np.column_stack([rng.uniform(0.9, 1.0, 60), own])
        factors = 3.0 * np.eye(4).repeat([24, 8, 8, 8], axis=0)
        rates = ShiftedLog(c).inverse(loadings @ factors.T)
        return rng.poisson(40.0 * rates / rates.max())

    @pytest.mark.parametrize("c", [0.1, np.inf])
    def test_shares_and_the_dominant_factor(self, c):
        """The factor that all samples share is the largest in some of every group, and tells none apart."""
        fit = fit_log1p_nmf(self.cells(c), 4, c=c)
        signal = fit.loadings @ fit.factors.sum(axis=0)
        np.testing.assert_allclose(shares(fit) * signal[:, None], fit.loadings * fit.factors.sum(axis=0))
        np.testing.assert_allclose(shares(fit).sum(axis=1), 1.0)
        np.testing.assert_allclose(shares(fit.normalized("factor_sum")), shares(fit), atol=1e-12)
        if c == np.inf:  # where parts add up they are the proportions of topics
            np.testing.assert_allclose(shares(fit), topic_model(fit).proportions)
        found = dominant_factor(fit)
        by_group = [set(found[group == self.GROUPS]) for group in range(3)]
        assert [len(names) for names in by_group] == [1, 1, 1]
        assert len(set.union(*by_group)) == 3

    def test_samples_without_counts_have_none(self):
        model = Log1pNMF(3).fit(np.vstack([self.cells(1.0), np.zeros(48)]))
        assert dominant_factor(model)[-1] is None
        assert not shares(model)[-1].any()
        alone = Log1pNMF(1).fit(self.cells(1.0))  # all factors are shared: none is left out
        assert set(dominant_factor(alone)) == {"k0"}


@given(TABLES)
def test_bounds_of_sparsity_and_of_effective_factors(values):
    assert ((hoyer(values) >= 0) & (hoyer(values) <= 1)).all()
    some, effective = values.sum(axis=1) > 0, effective_factors(values)
    assert (effective[some] >= 1 - 1e-9).all()
    assert (effective <= values.shape[1] + 1e-9).all()
    assert (effective[~some] == 0).all()


def test_known_values_whatever_the_scale(table):
    one_hot, constant, half = np.eye(9)[0], np.full(9, 0.3), np.repeat([1.0, 0.0], [4, 5])
    columns = np.stack([one_hot, constant, half], axis=1)
    np.testing.assert_allclose(hoyer(columns), [1.0, 0.0, (3 - 2) / (3 - 1)], atol=1e-12)
    for zeros in (np.zeros((4, 2)), [[3.0, 0.0]]):
        np.testing.assert_array_equal(hoyer(zeros), [0.0, 0.0])
    shuffled = table[np.random.default_rng(1).permutation(len(table))]
    np.testing.assert_allclose(hoyer(1e-200 * shuffled[:, ::-1]), hoyer(table)[::-1], rtol=1e-12)
    rows = np.array([[0, 2, 0, 0], [1, 1, 0, 0], [3, 3, 3, 3], [0, 0, 0, 0]])
    for scale in (1.0, 1e-9, 7.0):
        np.testing.assert_allclose(effective_factors(scale * rows), [1, 2, 4, 0], rtol=1e-12)


def test_correlation_is_spearmans(table):
    table[:10] = 0.0  # ties
    scaled = np.expm1(table) * [1.0, 2.0, 3.0, 1e-9, 1e9]  # only ranks matter
    for one in (table, scaled):
        np.testing.assert_allclose(correlation_matrix(one), spearmanr(table).statistic, atol=1e-12)
    matrix = np.abs(spearmanr(table).statistic)
    for order in (range(5), [3, 1, 0, 4, 2]):
        assert factor_correlation(table[:, order]) == pytest.approx((matrix.sum() - 5) / 20)
    table[:, 2] = 0.7  # a constant column is correlated with none
    np.testing.assert_array_equal(correlation_matrix(table)[2], [0, 0, 1, 0, 0])
    assert np.isfinite(factor_correlation(table))
    assert factor_correlation(table[:, :1]) == 0.0  # of a single factor
    assert factor_correlation([[1, 3], [2, 2], [3, 1]]) == pytest.approx(1.0)  # opposite columns


class TestLikelihood:
    def test_of_a_model_brings_features_in_order(self, counts):
        frame = pd.DataFrame(counts, columns=[f"gene{j}" for j in range(counts.shape[1])])
        model = Log1pNMF(2, tol=1e-3, random_state=0).fit(frame)
        backwards = frame[frame.columns[::-1]]
        assert log_likelihood(model, backwards) == pytest.approx(model.log_likelihood_, rel=1e-10)

    def test_other_samples_are_refused(self, counts):
        fit = fit_log1p_nmf(counts, 2, tol=1e-3, random_state=0)
        with pytest.raises(ValueError, match="the fit is of 30 samples, got counts of 10"):
            log_likelihood(fit, counts[:10])
        with pytest.raises(TypeError, match=r"expected a Fit, a fitted Log1pNMF, .* got int"):
            log_likelihood(3, counts)


class TestDeviance:
    def test_of_the_null_model_is_zero(self, counts):
        # The Poisson rank-one fit with the identity link is the product of the margins.
        fit = fit_log1p_nmf(counts, 1, c=np.inf, random_state=0)
        assert deviance_explained(fit, counts) == pytest.approx(0.0, abs=1e-8)
        margins = np.outer([1, 2, 3], [2, 4])  # nothing is left to explain
        assert deviance_explained(fit_log1p_nmf(margins, 1, c=np.inf, random_state=0), margins) == 0.0

    def test_of_a_saturated_fit_is_one(self):
        counts = np.array([[5, 0, 1], [2, 7, 1], [1, 1, 9]])
        fit = fit_log1p_nmf(counts, 3, c=np.inf, init=(counts, np.eye(3)), size_factors="none")
        assert deviance_explained(fit, counts) == pytest.approx(1.0, abs=1e-6)

    def test_is_the_ratio_of_deviances(self, counts):
        fit = fit_log1p_nmf(counts, 2, c=1.0, tol=1e-3, random_state=0)
        null = np.outer(counts.sum(axis=1), counts.sum(axis=0)) / counts.sum()
        best, margins = poisson.logpmf(counts, counts).sum(), poisson.logpmf(counts, null).sum()
        expected = 1 - (best - log_likelihood(fit, counts)) / (best - margins)
        assert deviance_explained(fit, counts) == pytest.approx(expected, rel=1e-8)


class TestMatching:
    @pytest.mark.parametrize("measure", ["correlation", "cosine"])
    def test_finds_a_permutation_of_scaled_columns(self, table, measure):
        order = np.array([3, 0, 4, 1, 2])
        match = match_factors(table, table[:, order] * [1, 5, 0.1, 3, 2], measure=measure)
        np.testing.assert_array_equal(order[match.pairs[:, 1]], match.pairs[:, 0])
        np.testing.assert_allclose(match.similarity, 1.0)

    def test_is_the_best_in_total(self):
        # Greedy would pair the most similar columns first, and end up with less.
        a = np.array([[1.0, 0.9], [0.0, 0.1], [0.0, 0.0]])
        b = np.array([[1.0, 0.2], [0.0, 0.0], [0.0, 1.0]])
        match = match_factors(a, b, measure="cosine")
        totals = [match.matrix[0, 0] + match.matrix[1, 1], match.matrix[0, 1] + match.matrix[1, 0]]
        assert match.similarity.sum() == pytest.approx(max(totals))

    def test_is_symmetric_also_with_different_numbers_of_factors(self, table):
        other = np.random.default_rng(5).gamma(0.5, size=(40, 3))
        there, back = match_factors(table, other), match_factors(other, table)
        assert set(map(tuple, there.pairs)) == {(i, j) for j, i in back.pairs}
        np.testing.assert_allclose(there.matrix, back.matrix.T)
        match = match_factors(table[:, [2, 4]], table)
        assert match.pairs.tolist() == [[0, 2], [1, 4]]
        assert match.order().tolist() == [2, 4, 0, 1, 3]

    def test_correlation_does_not_see_an_offset(self, table):
        match = match_factors(table + 10.0, table)
        np.testing.assert_allclose(match.similarity, 1.0)
        assert match_factors(table + 10.0, table, measure="cosine").similarity.max() < 0.99
        table[:, 0] = 1.0  # a constant column is like no other
        np.testing.assert_array_equal(match_factors(table, table).matrix[0], 0.0)

    def test_refusals(self, table):
        with pytest.raises(ValueError, match="same rows, got 40 and 39"):
            match_factors(table, table[1:])
        with pytest.raises(ValueError, match="measure must be one of 'correlation', 'cosine', got 'euclid'"):
            match_factors(table, table, measure="euclid")
        with pytest.raises(ValueError, match=r"got shape \(40,\)"):
            hoyer(table[:, 0])
        with pytest.raises(ValueError, match="must not be negative"):
            effective_factors([[1.0, -0.5]])
