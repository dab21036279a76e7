"""What `benchmarks.others` measures: right on small data, whatever program is measured."""

import json

import numpy as np
import pytest
from benchmarks import others, others_scores, others_worker
from benchmarks.others_worker import METHODS
from scipy import sparse
from scipy.stats import poisson

from log1pnmf.counts.counts import Counts
from log1pnmf.counts.splitting import split_counts

LABELS = np.repeat(["a", "b", "c"], 20)
BLOCKS = np.kron(np.eye(3), np.ones((20, 6)))


@pytest.fixture(scope="module")
def parts():
    counts = np.random.default_rng(0).poisson(0.5 + 4.0 * BLOCKS)
    return split_counts(Counts.from_any(counts), 0.2, random_state=0)


def test_the_heldout_score_is_the_poisson_log_likelihood(parts):
    train, test = parts
    means = 0.1 + np.random.default_rng(1).random(train.shape)
    y, seen = test.to_scipy().toarray(), train.to_scipy().toarray()
    assert others_scores.heldout(means, train, test, 0.2, background=0.0) == pytest.approx(
        poisson.logpmf(y, means / 4.0).sum()
    )
    rows, columns = seen.sum(axis=1) + 0.5, seen.sum(axis=0) + 0.5
    mixed = 0.9 * means + 0.1 * np.outer(rows, columns) / columns.sum()
    assert others_scores.heldout(means, train, test, 0.2, background=0.1) == pytest.approx(
        poisson.logpmf(y, mixed / 4.0).sum()
    )


def test_loadings_that_are_the_labels_agree_fully():
    loadings = (LABELS[:, None] == np.unique(LABELS)) * [1.0, 20.0, 300.0]  # scales do not matter
    for score in (others_scores.strongest, others_scores.clustered, others_scores.predicted):
        assert score(loadings, LABELS) == pytest.approx(1.0)
    shared = np.column_stack([np.linspace(0.8, 1.0, 60), 0.7 * loadings / loadings.max(axis=0)])
    shared[::20, 1:] /= 0.7  # the largest loading of every factor is 1, and that of most samples is less
    assert others_scores.dominant(shared, np.ones((4, 9)), LABELS) == pytest.approx(1.0)
    assert others_scores.strongest(shared, LABELS) < 0.5
    assert np.isnan(others_scores.dominant(loadings - 1.0, np.ones((3, 9)), LABELS))
    shuffled = np.random.default_rng(0).permutation(LABELS)
    assert abs(others_scores.strongest(loadings, shuffled)) < 0.2
    assert others_scores.clustered(loadings, shuffled) < 0.3
    assert np.isnan(others_scores.strongest(loadings - 1.0, LABELS))  # no strongest part where signs differ


def test_stability_ignores_order_and_scale_and_for_signed_loadings_rotations():
    rng = np.random.default_rng(0)
    loadings, noise = rng.random((50, 3)), rng.random((50, 3))
    assert others_scores.stability([loadings, loadings[:, [2, 0, 1]] * [1.0, 5.0, 9.0]]) == pytest.approx(1)
    assert others_scores.stability([loadings, noise]) < 0.5
    signed = loadings - 0.5
    assert others_scores.stability([signed, signed @ np.linalg.qr(noise[:3])[0]]) == pytest.approx(1.0)


def test_coherent_topics_are_those_whose_words_meet():
    documents = Counts.from_any((BLOCKS > 0).astype(float))
    together, apart = np.kron(np.eye(3), np.ones(6)), np.tile(np.eye(6)[:3], 3)
    assert others_scores.coherent(together, documents, 6) == pytest.approx(1.0)
    assert others_scores.coherent(apart, documents, 3) < 0.0


@pytest.mark.parametrize(
    "name", ["log1pnmf c=inf", "log1pnmf c=1 single", "sklearn kl", "sklearn log", "sklearn lda"]
)
def test_every_program_here_predicts_better_than_one_factor(parts, name):
    """Means are those of the counts: on their scale, and Poisson fits keep their total."""
    train, test = parts
    counts = sparse.csr_matrix(train.to_scipy(), dtype=np.float64)
    loadings, weights, means = METHODS[name][2](counts, 3, 0)
    assert (loadings.shape, weights.shape) == ((60, 3), (3, 18))
    flat = np.outer(train.row_sums, train.by_column.row_sums()) / counts.sum()
    assert others_scores.heldout(means(), train, test, 0.2) > others_scores.heldout(flat, train, test, 0.2)
    if name in ("log1pnmf c=inf", "sklearn kl", "sklearn lda"):
        assert means().sum() == pytest.approx(counts.sum(), rel=1e-3)
    assert others_scores.strongest(loadings, LABELS) > 0.9


def test_a_worker_reports_seconds_memory_and_scores(parts):
    part = others.Part("simulated", 60, 18, 3, texts=True)
    split = others.Split(*parts, LABELS, parts[0])
    data, names = {"simulated": (part, split)}, ["log1pnmf c=1 single"]
    (row,) = others.rows(data, names, {})
    assert not list(others.rows(data, names, {}, done={("simulated", row["program"])}))
    assert (row["ari"], row["stability"]) == pytest.approx((1.0, 1.0), abs=0.1)
    assert min(row["gain"], row["cpu"]) > 0
    assert 0 <= row["memory"] < 500
    assert others.as_line(row, texts=True).count("|") == 11
    assert others.as_line(row, texts=False).count("|") == 10
    assert others.as_table(part, [{**row, "failed": "no"}, row]).count("log1pnmf") == 1  # the last row counts


def test_a_program_that_is_not_there_gets_a_row_that_says_so(parts, tmp_path, monkeypatch, capsys):
    monkeypatch.setitem(METHODS, "cnmf", ("cNMF", "no-such-program", METHODS["cnmf"][2]))
    (tmp_path / "jobs.json").write_text(json.dumps([{"number": 0, "method": "cnmf"}]))
    others_worker.main(str(tmp_path / "jobs.json"))
    said = json.loads(capsys.readouterr().out.removeprefix(others_worker.RESULT))["said"]
    part = others.Part("simulated", 60, 18, 3)
    row = others.measure(part, others.Split(*parts, LABELS, parts[0]), "cnmf", said, "")
    said = "| cNMF | no-such-program is not installed |"
    assert others.as_line(row, texts=False) == said + "  |" * 7
