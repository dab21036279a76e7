"""Convergence, sweep and comparison; sources of all kinds; figures of one's own and of pyplot."""

from dataclasses import replace

import anndata
import numpy as np
import pandas
import pytest
from matplotlib import pyplot
from matplotlib.colors import to_rgb

from log1pnmf import pl
from log1pnmf.analysis.groups import factor_colors, read_labels
from log1pnmf.fitting.fit import SWEEP
from log1pnmf.pl.canvas import fit_of_arrays, fit_to_draw


def at(fit, c):
    """Return the same fit at another c."""
    return replace(fit, settings=replace(fit.settings, c=c))


def moved(history, by):
    """Return the history of a fit whose objective is higher throughout."""
    return history | {name: history[name] + by for name in ("objective", "loss")}


class TestConvergence:
    def test_draws_the_gap_to_the_best(self, shown, ax):
        pl.convergence(shown, ax=ax)
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), shown.history["iteration"])
        objective = shown.history["objective"]
        np.testing.assert_allclose(ax.lines[0].get_ydata()[:-1], objective[:-1] - objective[-1])
        assert np.isnan(ax.lines[0].get_ydata()[-1])
        assert ax.lines[0].get_label() == "c = 1"

    def test_likelihoods_are_told_apart_and_not_compared(self, shown, ax):
        kinds = ["exact", "adaptive", "approximate"]
        histories = [
            moved(shown.history, i) | {"likelihood": np.repeat(kind, 12)} for i, kind in enumerate(kinds)
        ]
        pl.convergence([replace(shown, history=history) for history in histories], names=kinds, ax=ax)
        assert [line.get_linestyle() for line in ax.lines] == ["-", "-.", "--"]
        for line in ax.lines:
            np.testing.assert_allclose(line.get_ydata(), ax.lines[0].get_ydata())

    def test_the_best_is_over_fits_of_the_same_c_and_noise(self, shown, ax):
        better, dispersion = replace(shown, history=moved(shown.history, -1.0)), np.ones(len(shown.factors))
        others = [at(better, np.inf), replace(better, dispersion=dispersion)]
        pl.convergence([shown, better, *others], names=["one", "two", "three", "four"], ax=ax)
        one, two, *apart = (line.get_ydata() for line in ax.lines)
        np.testing.assert_allclose((one - two)[:-1], 1.0)
        assert one[-1] == pytest.approx(1.0)
        assert np.isnan([two[-1], *(other[-1] for other in apart)]).all()

    def test_steps_at_renewals_are_taken_out(self, shown, ax):
        """The same point is looked at twice there, so it is known by how much the function has changed."""
        history = {
            "iteration": np.array([0, 1, 2, 2, 3, 4]),
            "likelihood": np.repeat("adaptive", 6),
            "objective": np.array([9.0, 5.0, 4.0, 6.0, 5.5, 5.2]),
            "loss": np.array([9.0, 5.0, 4.0, 6.0, 5.5, 5.2]),
            "relative_change": np.array([np.nan, 1.0, 1.0, np.nan, 1.0, 1.0]),
        }
        pl.convergence(replace(shown, history=history), ax=ax)
        np.testing.assert_array_equal(ax.lines[0].get_xdata(), [0, 1, 2, 3, 4])
        np.testing.assert_allclose(ax.lines[0].get_ydata(), [5.8, 1.8, 0.8, 0.3, np.nan])


class TestSweep:
    TABLE = {  # noqa: RUF012
        "c": [np.inf, 0.01, 1.0, 100.0],
        "factor_correlation": [0.8, 0.2, 0.4, 0.6],
        "sparsity_loadings": [0.7, 0.3, 0.5, 0.6],
        "sparsity_factors": [0.9, 0.1, 0.2, 0.3],
        "log_likelihood": [-9.0, -5.0, -4.0, -6.0],
        "deviance_explained": [0.1, 0.4, 0.5, 0.3],
    }

    def test_values_of_c_stand_in_their_order_and_infinity_is_last(self, figure):
        pl.sweep(self.TABLE, figure=figure)
        assert len(figure.axes) == 3
        (line,) = figure.axes[0].lines
        np.testing.assert_allclose(line.get_ydata(), [0.2, 0.4, 0.6, 0.8])
        assert sorted(self.ticks(figure)) == [(0, "0.01"), (1, "1"), (2, "100"), (3, "∞")]

    def test_of_many_values_of_c_some_are_named(self, figure):
        c = [*np.logspace(-3, 3, 13), np.inf]
        pl.sweep({"c": c, "sparsity_factors": c}, measures=["sparsity_factors"], figure=figure)
        assert sorted(self.ticks(figure))[-2:] == [(11, "316.228"), (13, "∞")]
        assert len(self.ticks(figure)) == 7

    def ticks(self, figure):
        ax = figure.axes[0]
        names = [text.get_text() for text in ax.get_xticklabels()]
        return list(zip(ax.get_xticks().tolist(), names, strict=True))

    def test_data_frames_sweeps_and_anndata(self, figure):
        frame = pandas.DataFrame(self.TABLE)
        adata = anndata.AnnData(np.zeros((2, 2)), uns={SWEEP: frame})
        for table in (frame, adata):
            pl.sweep(table, measures=["sparsity_factors"], figure=figure)
            np.testing.assert_allclose(figure.axes[0].lines[0].get_ydata(), [0.1, 0.2, 0.3, 0.9])
            figure.clear()


class TestCompare:
    @pytest.fixture
    def permuted(self, shown):
        order = [2, 0, 3, 1]
        return at(replace(shown, loadings=shown.loadings[:, order], factors=shown.factors[:, order]), 7.0)

    def test_matched_factors_have_the_same_colours(self, shown, permuted, labels, figure):
        pl.compare(shown, permuted, labels, figure=figure)
        upper, lower = figure.axes[:2]
        # The same fit in another order looks the same.
        np.testing.assert_array_equal(upper.images[0].get_array(), lower.images[0].get_array())
        names = [text.get_text() for text in lower.get_legend().get_texts()][::-1]
        assert names == ["k1", "k3", "k0", "k2"]
        colors = [patch.get_facecolor()[:3] for patch in lower.get_legend().get_patches()][::-1]
        assert colors == [to_rgb(color) for color in factor_colors(shown.loadings)]

    def test_matches_are_on_the_diagonal(self, shown, permuted, figure):
        pl.compare(shown, permuted, figure=figure)
        similar = np.asarray(figure.axes[2].images[0].get_array())
        np.testing.assert_allclose(np.diag(similar), 1.0)
        assert [text.get_text() for text in figure.axes[2].get_xticklabels()] == ["k1", "k3", "k0", "k2"]

    def test_factors_like_no_other_have_colours_of_their_own(self, shown, figure):
        rng = np.random.default_rng(9)
        strange = np.column_stack((shown.loadings[:, 1], rng.random(60)))
        other = fit_of_arrays(strange, np.ones((30, 2)), np.inf)
        pl.compare(shown, other, figure=figure)
        used = [patch.get_facecolor()[:3] for patch in figure.axes[1].get_legend().get_patches()]
        ours = [to_rgb(color) for color in factor_colors(shown.loadings)]
        assert sum(color in ours for color in used) == 1
        assert len(set(used)) == 2


class TestSources:
    def test_anndata(self, ax):
        from log1pnmf import tl

        adata = anndata.AnnData(np.random.default_rng(0).poisson(2.0, size=(30, 12)).astype(np.float32))
        tl.log1p_nmf(adata, 3, key_added="mine", tol=1e-4)
        shown = fit_to_draw(adata, key="mine")
        np.testing.assert_allclose(shown.loadings.max(axis=0), 1.0)
        link = adata.obsm["mine"] @ adata.varm["mine"].T
        np.testing.assert_allclose(shown.loadings @ shown.factors.T, link)
        assert shown.feature_names.tolist() == adata.var_names.tolist()
        assert len(shown.history["objective"])
        some = adata[5:15, ::2].copy()  # which keeps the scale
        np.testing.assert_array_equal(fit_to_draw(some, key="mine").loadings, adata.obsm["mine"][5:15])
        np.testing.assert_array_equal(fit_to_draw(some, key="mine").factors, adata.varm["mine"][::2])
        pl.factor_scatter(some, 0, 1, key="mine", ax=ax)

    def test_columns_of_obs_keep_the_order_of_categories(self):
        column = pandas.Categorical(["b", "a", "b"], categories=["b", "a"])
        adata = anndata.AnnData(np.zeros((3, 2)), obs=pandas.DataFrame({"type": column}, index=list("xyz")))
        assert read_labels(adata, "type", scale=False).names == ("b", "a")
        with pytest.raises(KeyError, match="no column 'kind'; it has: 'type'"):
            read_labels(adata, "kind", scale=False)


class TestFigures:
    def test_given_axes_leave_pyplot_alone(self, shown, labels, ax):
        before = pyplot.get_fignums()
        assert pl.structure(shown, labels, ax=ax) is ax
        assert pl.convergence(shown, ax=ax) is ax
        assert pyplot.get_fignums() == before

    def test_without_axes_pyplot_has_the_figure(self, shown):
        assert pl.structure(shown).figure is pyplot.gcf()
        assert pl.top_features(shown) is pyplot.gcf()
