"""What scanpy users expect of plots: maps, show and save, gene symbols, the colours of their categories."""

import numpy as np
import pytest
from matplotlib.colors import to_hex

from log1pnmf import dominant_factor, pl, tl

anndata = pytest.importorskip("anndata")


@pytest.fixture(scope="module")
def adata():
    rng = np.random.default_rng(0)
    counts = rng.poisson(np.where(np.eye(3).repeat(20, 0).repeat(5, 1), 6.0, 0.5)).astype(np.float32)
    made = anndata.AnnData(counts)
    made.var_names = [f"ENSG{j}" for j in range(15)]
    made.var["symbol"] = [f"gene{j}" for j in range(15)]
    made.obs["group"] = np.repeat(["a", "b", "c"], 20)
    made.obs["group"] = made.obs["group"].astype("category")
    made.obsm["X_umap"], made.obsm["spatial"] = rng.random((60, 2)), rng.random((60, 3))
    tl.log1p_nmf(made, 3, init="nndsvd", tol=1e-4, n_jobs=1)
    return made


class TestEmbedding:
    def test_every_factor_has_a_panel_with_its_loadings(self, adata, figure):
        pl.embedding(adata, figure=figure)
        assert [ax.get_title(loc="left") for ax in figure.axes] == ["k0", "k1", "k2"]
        for k, ax in enumerate(figure.axes):
            (points,) = ax.collections
            loadings = adata.obsm["X_log1p_nmf"][:, k]
            np.testing.assert_allclose(points.get_array(), np.sort(loadings))  # the highest are drawn last
            places = adata.obsm["X_umap"][np.argsort(loadings, kind="stable")]
            np.testing.assert_allclose(points.get_offsets(), places)

    def test_maps_and_factors_by_name(self, adata, figure):
        pl.embedding(adata, "umap", factors=["k2", 0], figure=figure)
        assert [ax.get_title(loc="left") for ax in figure.axes] == ["k2", "k0"]
        with pytest.raises(KeyError, match="no 'tsne'"):
            pl.embedding(adata, "tsne")


class TestSpatial:
    @pytest.fixture
    def tissue(self, adata):
        """Two sections, one of them with an image of 20 x 30 pixels, five units of the positions each."""
        own = adata.copy()
        own.obs["section"] = np.tile(["A1", "B1"], 30)
        scales = {"tissue_lowres_scalef": 0.2, "spot_diameter_fullres": 7.0}
        own.uns["spatial"] = {"A1": {"images": {"lowres": np.ones((20, 30, 3))}, "scalefactors": scales}}
        own.obsm["spatial"] = 100.0 * own.obsm["spatial"]
        return own

    def test_each_section_has_its_spots_size_and_image(self, tissue, figure):
        pl.spatial(tissue, factors=["k1"], size=2.0, figure=figure)
        what = [f"{section} {one}" for section in ("A1", "B1") for one in ("dominant factor", "k1")]
        assert [ax.get_title(loc="left") for ax in figure.axes] == what
        loadings = tissue.obsm["X_log1p_nmf"][:, 1]
        for ax, rows in zip(figure.axes[1::2], (slice(0, None, 2), slice(1, None, 2)), strict=True):
            (spots,) = ax.collections
            np.testing.assert_allclose(spots.get_offsets(), tissue.obsm["spatial"][rows, :2])
            np.testing.assert_allclose(spots.get_array(), loadings[rows])
            assert spots.get_clim() == (0.0, loadings.max())
            assert ax.yaxis_inverted()
        first, last = figure.axes[1], figure.axes[-1]
        assert [image.get_extent() for image in first.images] == [[0.0, 150.0, 100.0, 0.0]]
        assert not last.images
        first_width, last_width = (2 * ax.collections[0]._widths[0] for ax in (first, last))
        assert first_width == 14.0
        there = tissue.obsm["spatial"][1::2, :2]
        distances = np.hypot(*(there[:, None] - there[None]).transpose(2, 0, 1)) + np.diag([np.inf] * 30)
        np.testing.assert_allclose(last_width, 2 * np.median(distances.min(axis=0)))

    def test_each_section_begins_a_row(self, tissue, figure):
        pl.spatial(tissue, factors=[0, 1], n_columns=2, figure=figure)
        titles = [ax.get_title(loc="left") for ax in figure.axes]
        assert titles == [
            f"{name} {what}" for name in ("A1", "B1") for what in ("dominant factor", "k0", "k1")
        ]
        at = [ax.get_subplotspec() for ax in figure.axes]
        assert [(one.rowspan.start, one.colspan.start) for one in at] == [
            (0, 0), (0, 1), (1, 0), (2, 0), (2, 1), (3, 0)
        ]  # fmt: skip

    def test_colours_are_those_of_the_dominant_factors(self, tissue, figure):
        pl.spatial(tissue[::2], factors=[], image="none", figure=figure)
        (ax,) = figure.axes
        assert not ax.images
        legend = ax.get_legend()
        entries = zip(legend.get_texts(), legend.get_patches(), strict=True)
        shown = {text.get_text(): to_hex(patch.get_facecolor()) for text, patch in entries}
        drawn = [to_hex(color) for color in ax.collections[0].get_facecolor()]
        assert drawn == [shown[name] for name in dominant_factor(tissue[::2])]

    def test_refusals(self, tissue):
        with pytest.raises(ValueError, match=r"several sections.*pl\.spatial"):
            pl.embedding(tissue, "spatial")
        with pytest.raises(KeyError, match=r"library_key: adata\.obs has no column 'chip'"):
            pl.spatial(tissue, library_key="chip")
        tissue.uns["spatial"]["B1"] = {}
        del tissue.obs["section"]
        with pytest.raises(ValueError, match="2 libraries; pass library_key"):
            pl.spatial(tissue)
        del tissue.obsm["spatial"]
        with pytest.raises(KeyError, match=r"obsm\['spatial'\]"):
            pl.spatial(tissue)


def test_show_and_save(adata, tmp_path, monkeypatch):
    from matplotlib import pyplot

    shown = []
    monkeypatch.setattr(pyplot, "show", lambda: shown.append(True))
    ax = pl.structure(adata, "group", save=tmp_path / "structure.pdf", show=True)
    assert ax.get_ylabel() == "loading"
    assert (tmp_path / "structure.pdf").read_bytes().startswith(b"%PDF")
    pl.top_features(adata, save=tmp_path / "top.png")
    assert (tmp_path / "top.png").exists()
    assert shown == [True]


def test_gene_symbols(adata, figure, ax):
    pl.top_features(adata, gene_symbols="symbol", n_top=3, figure=figure)
    named = [text.get_text() for panel in figure.axes[1:] for text in panel.get_yticklabels()]
    assert named
    assert all(name.startswith("gene") for name in named)
    tl.markers(adata)
    drawn = pl.volcano(adata, 1, gene_symbols="symbol", ax=ax)
    assert {text.get_text()[:4] for text in drawn.texts} == {"gene"}


def test_colours_of_categories(adata, figure):
    own = adata.copy()
    own.uns["group_colors"] = ["#ff0000", "#00ff00", "#0000ff"]
    tl.usage(own, "group", replicate=True, relative_to=None)
    left = pl.usage(own, figure=figure).axes[0]
    handles, labels = left.get_legend_handles_labels()
    assert dict(zip(labels, [to_hex(line.get_color()) for line in handles], strict=True)) == {
        "a": "#ff0000",
        "b": "#00ff00",
        "c": "#0000ff",
    }
