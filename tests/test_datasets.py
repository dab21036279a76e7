"""The bundled data: what the notice says, in a form the fit takes, and the full matrix's own counts."""

from importlib import resources
from pathlib import Path

import anndata
import numpy as np
import pytest
from scipy import sparse

from log1pnmf.counts.counts import Counts
from log1pnmf.datasets import made_up_donors, manual_pages, pancreas

FULL = Path(__file__).parents[2] / "shared" / "data" / "baron_human_pancreas.h5ad"
# Textbook markers. The two T cells are too few to test, and quiescent stellate cells share theirs.
MARKERS = {
    "beta": "INS",
    "alpha": "GCG",
    "delta": "SST",
    "gamma": "PPY",
    "epsilon": "GHRL",
    "acinar": "PRSS1",
}
MARKERS |= {"ductal": "KRT19", "endothelial": "PLVAP", "activated_stellate": "COL1A1", "macrophage": "CD68"}
MARKERS |= {"mast": "TPSAB1", "schwann": "SOX10"}


@pytest.fixture(scope="module")
def data():
    return pancreas()


def test_shapes_and_types(data):
    assert isinstance(data.counts, sparse.csr_matrix)  # scanpy 1.11 does not take csr_array
    assert data.counts.dtype == data.counts.indices.dtype == np.int32
    assert data.counts.shape == (1937, 2425) == (data.sample_labels.size, data.feature_names.size)
    assert data.sample_labels.dtype.kind == data.feature_names.dtype.kind == "U"
    assert len(set(data.feature_names)) == 2425
    assert len(set(data.sample_labels)) == 14
    counts = Counts.from_any(data.counts)
    assert np.shares_memory(counts.by_row.indices, data.counts.indices)  # canonical
    assert counts.n_empty == (0, 0)
    with resources.as_file(resources.files("log1pnmf.datasets") / "pancreas.npz") as path:
        assert path.stat().st_size <= 2_000_000


def test_known_markers_are_highest_in_their_cell_types(data):
    """Names, labels and counts belong together: a shift by one in any of them would break this."""
    types = np.unique(data.sample_labels)
    shares = data.counts.toarray() / data.counts.toarray().sum(axis=1, keepdims=True)
    means = np.array([shares[data.sample_labels == label].mean(axis=0) for label in types])
    for cell_type, gene in MARKERS.items():
        assert types[means[:, data.feature_names == gene].argmax()] == cell_type


@pytest.mark.skipif(not FULL.exists(), reason="the full matrix is not here")
def test_counts_are_those_of_the_full_matrix(data):
    full = anndata.read_h5ad(FULL)
    assert full.obs["label"].tolist() == data.sample_labels.tolist()
    same = full[:, data.feature_names].X
    assert (sparse.csr_array(same) != data.counts).nnz == 0


def test_manual_pages_are_long_enough_and_named():
    pages = manual_pages()
    assert len(pages.texts) == len(pages.names) == len(pages.parts) > 500
    assert min(len(text.split()) for text in pages.texts) >= 50
    assert all(name.startswith(f"{part}.") for name, part in zip(pages.names, pages.parts, strict=True))
    assert not any(">>>" in text.splitlines()[-1] for text in pages.texts)


def test_made_up_donors_have_the_design_that_the_tutorial_is_about():
    """Donors are nested in conditions, chips cross them; the genes that answer rise, the others do not."""
    data, again, other = made_up_donors(), made_up_donors(), made_up_donors(seed=1)
    assert (data.counts != again.counts).nnz == 0
    assert not np.array_equal(data.donor, other.donor)
    of_donor = {donor: set(data.condition[data.donor == donor]) for donor in np.unique(data.donor)}
    assert all(len(conditions) == 1 for conditions in of_donor.values())
    on_chips = {chip: set(data.condition[data.chip == chip]) for chip in np.unique(data.chip)}
    assert all(conditions == {"control", "interferon"} for conditions in on_chips.values())
    counts = data.counts.toarray()
    shares = counts / counts.sum(axis=1, keepdims=True)
    means = [shares[data.condition == one].mean(axis=0) for one in ("control", "interferon")]
    rise = means[1] / means[0]
    answers = np.isin(data.feature_names, data.response)
    assert answers.sum() == 12
    assert rise[answers].min() > 1.3 > np.median(rise[~answers])
