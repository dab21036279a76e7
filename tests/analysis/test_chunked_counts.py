"""What is asked of a model after the fit, with counts that are in chunks."""

import anndata
import numpy as np
import pandas as pd
import pytest
from scipy import sparse

from log1pnmf import Log1pNMF
from log1pnmf._common.checks import Passes
from log1pnmf.analysis import diagnose
from log1pnmf.analysis.metrics import deviance_explained, log_likelihood
from log1pnmf.counts import open_counts
from log1pnmf.counts import passes as survey

OPTIONS = {"random_state": 0, "n_jobs": 1, "max_iter": 60, "tol": 1e-6, "likelihood": "chebyshev"}


@pytest.fixture(scope="module")
def model(matrix):
    return Log1pNMF(3, **OPTIONS).fit(matrix)


@pytest.fixture
def few_in_memory(monkeypatch):
    monkeypatch.setattr(survey, "SAMPLE_ROWS", 90)


def test_score_is_that_of_all_samples(model, matrix, cut):
    sizes = np.linspace(0.5, 2.0, 203)
    for options in ({}, {"size_factors": sizes}, {"size_factors": "none"}):
        expected = model.score(matrix, **options)
        assert model.score(open_counts(cut(5)), **options) == pytest.approx(expected, rel=1e-10)
    with pytest.raises(ValueError, match="one number for each of the 203 samples"):
        model.score(open_counts(cut(5)), size_factors=sizes[1:])


def test_log_likelihood_is_that_of_all_samples(model, matrix, cut):
    expected = log_likelihood(model, matrix)
    assert log_likelihood(model, open_counts(cut(5))) == pytest.approx(expected, rel=1e-12)
    assert log_likelihood(model.fit_, open_counts(cut(5))) == pytest.approx(expected, rel=1e-12)
    with pytest.raises(TypeError, match="pass all or some of the rows"):
        deviance_explained(model, open_counts(cut(5)))


def test_markers_and_diagnostics_are_the_same_where_all_fits_in_memory(model, matrix, cut):
    source = open_counts(cut(4))
    here, there = model.markers(matrix), model.markers(source)
    np.testing.assert_array_equal(here.effect, there.effect)
    np.testing.assert_array_equal(here.adjusted_p, there.adjusted_p)
    here, there = diagnose(model, matrix), diagnose(model, source)
    np.testing.assert_array_equal(here.feature_deviance, there.feature_deviance)
    np.testing.assert_array_equal(here.sample_names, there.sample_names)


def test_otherwise_they_are_of_the_samples_in_memory(model, matrix, cut, few_in_memory):
    rows = survey.sampled_rows(203)
    source, part = open_counts(cut(4)), matrix[rows]
    found = diagnose(model, source)
    np.testing.assert_array_equal(found.sample_names, rows.astype(str))
    np.testing.assert_allclose(found.feature_mean, part.mean(axis=0), rtol=1e-6)
    sizes = model.fit_.size_factors
    markers, whole = (model.markers(counts, size_factors=sizes) for counts in (source, matrix))
    counted = np.asarray(part.sum(axis=0)).ravel() > 20
    ratio = np.median(markers.error[counted] / whole.error[counted])
    assert 1.2 < ratio < 2.0  # less than half of the samples: about sqrt(203 / 90) = 1.5
    inside = np.abs(markers.effect - whole.effect) < 5.0 * markers.error
    assert inside[counted].mean() > 0.99


def test_other_features_are_refused(matrix):
    names = [f"g{j}" for j in range(60)]
    fitted = Log1pNMF(2, **OPTIONS | {"tol": 1e-3}).fit(pd.DataFrame(matrix.toarray(), columns=names))
    other = anndata.AnnData(sparse.csr_matrix(matrix), var=pd.DataFrame(index=names[::-1]))
    with pytest.raises(ValueError, match="60 features of the fit, in the same order"):
        diagnose(fitted, open_counts(other))


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
def test_every_pass_tells_of_its_chunks(cut):
    told = []
    source = open_counts(cut(4), on_chunk=lambda done, of_all: told.append((done, of_all)))
    model = Log1pNMF(3, **OPTIONS | {"max_iter": 2}).fit(source)
    assert told[:4] == [(1, 4), (2, 4), (3, 4), (4, 4)]  # the first look
    assert len(told) > 12
    assert told == [(done, 4) for _ in range(len(told) // 4) for done in (1, 2, 3, 4)]
    told.clear()
    model.transform(source)
    assert told == [(1, 4), (2, 4), (3, 4), (4, 4)]


def test_a_terminal_shows_a_bar_for_each_pass(capsys, monkeypatch):
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    passes = Passes()
    for done in (1, 2, 1, 2):
        passes(done, 2)
    out, err = capsys.readouterr()
    assert out == ""
    assert "pass 1" in err
    assert "pass 2" in err
