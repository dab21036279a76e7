"""Kinds of noise are compared with each other on the same held-out counts, in one table."""

from __future__ import annotations

from typing import Any

import anndata
import numpy as np
import pytest

import log1pnmf as lp
from log1pnmf.analysis.selection import Selection, Setting, judge, select
from log1pnmf.analysis.selection.grid import Grid

OPTIONS: dict[str, Any] = {
    "n_folds": 2,
    "n_seeds": 0,
    "n_starts": 1,
    "tol": 1e-4,
    "init": "nndsvd",
    "n_jobs": 1,
    "size_factors": "none",
}


def drawn(dispersion: float) -> np.ndarray:
    rng = np.random.default_rng(0)
    means = 3.0 * rng.dirichlet(np.full(2, 0.3), 60) @ rng.gamma(1.0, 2.0, (2, 40))
    if dispersion:
        means = means * rng.gamma(1.0 / dispersion, dispersion, means.shape)
    return rng.poisson(means)


@pytest.fixture(scope="module")
def found(tmp_path_factory: Any) -> tuple[Selection, Any]:
    path = tmp_path_factory.mktemp("noise") / "state.npz"
    return select(drawn(0.5), np.inf, [1, 2, 3], noise=["nb", "poisson"], resume=path, **OPTIONS), path


def test_both_are_in_one_table_and_the_data_choose(found: tuple[Selection, Any]) -> None:
    selection, _ = found
    assert list(selection.summary["noise"]) == ["poisson"] * 3 + ["nb"] * 3
    assert selection.best == Setting(np.inf, 2, 0.0, "nb")
    assert selection.judgement.setting == selection.best
    assert "noise = nb predicts held-out counts best; noise = poisson is" in str(selection)
    assert lp.Log1pNMF(**selection.one_se.parameters).noise == "nb"
    fewer = select(drawn(0.0), np.inf, [2], noise="auto", **OPTIONS)
    assert [setting.noise for setting in fewer.settings] == ["poisson", "nb"]
    assert fewer.one_se.noise == "poisson"


@pytest.mark.parametrize("noise", ["poisson", "nb"])
def test_scores_are_those_of_a_selection_with_that_noise_alone(
    found: tuple[Selection, Any], noise: str
) -> None:
    selection, _ = found
    alone = select(drawn(0.5), np.inf, [1, 2, 3], noise=noise, **OPTIONS)
    rows = [setting.noise == noise for setting in selection.settings]
    # the second noise also starts where the first has ended, so its fits may be a little better
    np.testing.assert_allclose(
        selection.scores[rows].sum(axis=(1, 2)), alone.scores.sum(axis=(1, 2)), rtol=1e-3
    )


def test_it_can_be_stopped_kept_and_drawn(found: tuple[Selection, Any]) -> None:
    selection, path = found
    again = Selection.load(path)
    assert again.settings == selection.settings
    assert again.is_whole
    np.testing.assert_array_equal(again.scores, selection.scores)
    labels = [text.get_text() for text in lp.pl.select(selection).axes[0].get_legend().get_texts()]
    assert any("poisson" in label for label in labels)
    assert any("nb" in label for label in labels)
    assert lp.pl.heldout(selection).get_title(loc="left").endswith("noise = nb")
    assert len(lp.pl.heldout_path(selection, "n_components", lines="all").containers) == 2


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
