"""Kinds of noise are compared with each other on the same held-out counts, in one table."""

from __future__ import annotations

from typing import Any

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.analysis import Selection, Setting, select
from log1pnmf.analysis.grid import Grid, ScoredFit
from log1pnmf.analysis.heldout import training_by_sample
from log1pnmf.analysis.selection import judge
from log1pnmf.counts.counts import Counts

OPTIONS: dict[str, Any] = {"n_folds": 2, "n_seeds": 0, "n_starts": 1, "tol": 1e-4, "init": "nndsvd"}
OPTIONS |= {"n_jobs": 1, "size_factors": "none"}


def drawn(dispersion: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    means = 3.0 * rng.dirichlet(np.full(2, 0.3), 60) @ rng.gamma(1.0, 2.0, (2, 40))
    if dispersion:
        means = means * rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means)


@pytest.fixture(scope="module")
def found(tmp_path_factory: Any) -> tuple[Selection, Any]:
    path = tmp_path_factory.mktemp("noise") / "state.npz"
    return select(drawn(0.5), [1, 2, 3], np.inf, noise=["nb", "poisson"], resume=path, **OPTIONS), path


def test_both_are_in_one_table_and_the_data_choose(found: tuple[Selection, Any]) -> None:
    selection, _ = found
    assert list(selection.summary["noise"]) == ["poisson"] * 3 + ["nb"] * 3
    assert selection.best == Setting(np.inf, 2, 0.0, "nb")
    assert selection.judgement.setting == selection.best
    assert "noise = nb predicts held-out counts best; noise = poisson is" in str(selection)
    assert lp.Log1pNMF(**selection.one_se.parameters).noise == "nb"
    fewer = select(drawn(0.0), [2], np.inf, noise="auto", **OPTIONS)
    assert [setting.noise for setting in fewer.settings] == ["poisson", "nb"]
    assert fewer.one_se.noise == "poisson"


@pytest.mark.parametrize("noise", ["poisson", "nb"])
def test_scores_are_those_of_a_selection_with_that_noise_alone(
    found: tuple[Selection, Any], noise: str
) -> None:
    selection, _ = found
    alone = select(drawn(0.5), [1, 2, 3], np.inf, noise=noise, **OPTIONS)
    rows = [setting.noise == noise for setting in selection.settings]
    # the second noise also starts where the first has ended, so its fits may be a little better
    np.testing.assert_allclose(
        selection.scores[rows].sum(axis=(1, 2)), alone.scores.sum(axis=(1, 2)), rtol=1e-3
    )


def made_up(rows: dict[Setting, tuple[float, float]], sizes: str = "total") -> Selection:
    """A selection with one fold: held-out and training log-likelihood of every setting, over ten samples."""
    shares = np.linspace(0.5, 1.5, 10) / 10.0
    records = [
        ScoredFit(0, setting, held * shares, 1, True, 0.0, fitted * shares)
        for setting, (held, fitted) in rows.items()
    ]
    grid = Grid.of({one.c for one in rows}, {one.n_components for one in rows}, noise="nb")
    return Selection.of(
        grid, records, {"n_folds": 1, "holdout": "counts", "settings": {"size_factors": sizes}}
    )


def test_training_counts_choose_among_values_of_c_but_not_of_k() -> None:
    """With the same number of parameters; between numbers of factors only held-out counts do."""
    few, many = ({c: Setting(c, K, noise="nb") for c in (0.1, 1.0, 9.0)} for K in (2, 3))
    rows = {few[0.1]: (-97.0, -930.0), few[1.0]: (-100.0, -900.0), few[9.0]: (-99.0, -980.0)}
    rows |= {many[0.1]: (-110.0, -700.0), many[1.0]: (-120.0, -720.0)}
    found = made_up(rows)
    assert found.best == few[1.0]
    assert "c = 1 predicts training and held-out counts best" in str(found)
    scores = dict(zip(found.settings, found.scores.sum(axis=(1, 2)), strict=True))
    assert scores == {
        few[0.1]: pytest.approx(-127.0),
        few[1.0]: pytest.approx(-100.0),
        few[9.0]: pytest.approx(-179.0),
        many[0.1]: pytest.approx(-110.0),
        many[1.0]: pytest.approx(-140.0),
    }


@pytest.mark.parametrize(("sizes", "best"), [("total", 1.0), ("fit", np.inf)])
def test_fitted_sizes_are_parameters_that_c_inf_does_not_have(sizes: str, best: float) -> None:
    rows = {Setting(1.0, 2, noise="nb"): (-100.0, -900.0), Setting(np.inf, 2, noise="nb"): (-99.0, -950.0)}
    assert made_up(rows, sizes).best.c == best


def test_fitted_counts_have_the_likelihood_of_the_fit() -> None:
    counts = drawn(0.5)
    fit = lp.fit_log1p_nmf(counts, 2, noise="nb", init="nndsvd", tol=1e-3, n_jobs=1)
    by_sample = training_by_sample(fit, Counts.from_any(counts))
    assert by_sample.sum() == pytest.approx(fit.log_likelihood, rel=1e-9)


def test_it_can_be_stopped_kept_and_drawn(found: tuple[Selection, Any]) -> None:
    selection, path = found
    again = Selection.load(path)
    assert again.settings == selection.settings
    assert again.is_whole
    np.testing.assert_array_equal(again.scores, selection.scores)
    labels = [text.get_text() for text in lp.pl.select(selection).axes[0].get_legend().get_texts()]
    assert any("poisson" in label for label in labels)
    assert any("nb" in label for label in labels)


def test_anndata(found: tuple[Selection, Any]) -> None:
    adata = anndata.AnnData(drawn(0.5).astype(float))
    lp.tl.select(adata, [1, 2], c=np.inf, noise=["poisson", "nb"], **OPTIONS)
    about = adata.uns["log1p_nmf_select"]
    assert about["suggested"]["noise"] == "nb" if about["suggested"] else "noise = nb" in about["judgement"]
    lp.pl.select(adata)


def test_a_table_without_noise_is_one_of_poisson_noise() -> None:
    table = {"c": [1.0] * 2, "n_components": [2, 3], "l1": [0.0] * 2}
    table |= {"difference": [-90.0, 0.0], "se_difference": [9.0, 0.0]}
    assert judge(table).simplest == Setting(1.0, 3)


def test_wrong_names_are_refused() -> None:
    with pytest.raises(ValueError, match="noise must be one of 'poisson', 'nb', 'auto'"):
        Grid.of(1.0, 2, noise=["poisson", "gamma"])
    with pytest.raises(ValueError, match="different names"):
        Grid.of(1.0, 2, noise=["nb", "nb"])
