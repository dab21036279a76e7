"""Topics: coherence and perplexity by hand; words of pipelines, typical texts, pyLDAvis."""

import math

import numpy as np
import pytest
from sklearn.decomposition import LatentDirichletAllocation
from sklearn.feature_extraction.text import CountVectorizer
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer

from log1pnmf import Log1pNMF, as_fit, fit_log1p_nmf
from log1pnmf.analysis import coherence, perplexity, top_features, top_samples, topic_model

TEXTS = np.array(
    [  # apple pear plum | iron zinc
        [3, 2, 0, 0, 0],
        [2, 4, 1, 0, 0],
        [1, 0, 2, 0, 0],
        [0, 0, 0, 5, 2],
        [0, 0, 0, 1, 0],
        [0, 0, 0, 0, 0],
    ]
)


@pytest.fixture(scope="module")
def fit():
    return fit_log1p_nmf(TEXTS, 2, c=math.inf)


def npmi(p_i, p_j, p_ij, eps=1e-12):
    """The formula of gensim's log-ratio measure, normalised."""
    return math.log((p_ij + eps) / (p_i * p_j)) / -math.log(p_ij + eps)


def test_coherence_is_the_mean_over_pairs_by_hand(fit):
    found = coherence(fit, TEXTS, 3, by="weight")
    fruit = np.mean([npmi(3 / 6, 2 / 6, 2 / 6), npmi(3 / 6, 2 / 6, 2 / 6), npmi(2 / 6, 2 / 6, 1 / 6)])
    metal = npmi(2 / 6, 1 / 6, 1 / 6)
    assert sorted(found) == pytest.approx(sorted([fruit, metal]))
    np.testing.assert_allclose(found, coherence(fit, TEXTS, 3))  # both orders have the same first words
    np.testing.assert_array_equal(coherence(fit, np.minimum(TEXTS, 1), 3), coherence(fit, TEXTS, 3))


def test_coherence_of_components_of_other_programs(fit):
    components = np.array([[3.0, 2.0, 1.0, 0.0, 0.5], [0.0, 1.0, 2.0, 5.0, 3.0]])
    expected = [npmi(3 / 6, 2 / 6, 2 / 6), npmi(2 / 6, 1 / 6, 1 / 6)]
    assert coherence(components, TEXTS, 2) == pytest.approx(expected)
    assert coherence(fit.factors.T, TEXTS, 3) == pytest.approx(coherence(fit, TEXTS, 3, by="weight"))
    with pytest.raises(ValueError, match="features"):
        coherence(components[:, :3], TEXTS)


def test_words_that_never_meet_are_near_minus_one(fit):
    apart = np.eye(5)[[0, 1, 2, 3, 4]]
    assert coherence(fit, apart, 2, by="weight") == pytest.approx([npmi(0.2, 0.2, 0.0)] * 2)
    everywhere = np.ones((4, 5))
    assert coherence(fit, everywhere, 2).tolist() == [0.0, 0.0]
    one_word = fit_log1p_nmf([[4, 0, 0], [3, 0, 0], [0, 2, 3]], 2, c=math.inf)  # in one of the topics
    assert np.isnan(coherence(one_word, [[4, 0, 0], [0, 2, 3]], 2)).sum() == 1


def topical(n, rng):
    """Documents of three topics with ten words each, evenly spread."""
    return rng.poisson(np.kron(np.eye(3), np.full((n // 3, 10), 4.0)))


@pytest.mark.parametrize(
    ("c", "size_factors"), [(0.1, "fit"), (1.0, "total"), (math.inf, "total"), (math.inf, "none")]
)
def test_perplexity_is_the_number_of_words_that_are_left(c, size_factors):
    rng = np.random.default_rng(0)
    train, new = topical(90, rng), topical(90, rng)
    values = [
        perplexity(fit_log1p_nmf(train, K, c=c, size_factors=size_factors, tol=1e-6), new) for K in (1, 3)
    ]
    assert values == pytest.approx([30.0, 10.0], rel=0.05)


def test_perplexity_does_not_fall_with_topics_that_are_not_there():
    rng = np.random.default_rng(1)
    train, new = topical(60, rng), topical(60, rng)
    three, nine = (perplexity(fit_log1p_nmf(train, K, c=math.inf, tol=1e-6), new) for K in (3, 9))
    assert nine > three
    lda = LatentDirichletAllocation(3, random_state=0).fit(train)
    assert three == pytest.approx(lda.perplexity(new), rel=0.15)  # the same scale


def test_no_word_is_impossible_and_no_document_too_short():
    fit = fit_log1p_nmf([[4, 3, 0], [3, 5, 0], [2, 2, 0]], 1, c=math.inf)
    assert math.isfinite(perplexity(fit, [[0, 0, 9], [0, 0, 0], [1, 0, 0]]))
    with pytest.raises(ValueError, match="too few counts to hold any out"):
        perplexity(fit, [[0, 0, 0]])


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda fit: coherence(fit, TEXTS, 1), "n_top must be at least 2"),
        (
            lambda fit: coherence(fit, TEXTS, by="size"),
            "by must be one of 'score', 'log2_fold_change', 'weight'",
        ),
        (lambda fit: coherence(fit, TEXTS[:, :3]), "features"),
        (lambda fit: perplexity(fit, TEXTS, test_fraction=1.0), "test_fraction"),
    ],
)
def test_refused(fit, call, message):
    with pytest.raises(ValueError, match=message):
        call(fit)


@pytest.fixture(scope="module")
def pipeline():
    texts = ["apple pear apple plum", "pear apple pear", "iron zinc iron", "zinc iron zinc zinc", "iron"]
    return make_pipeline(CountVectorizer(), Log1pNMF(2, c=math.inf)).fit(texts)


def test_words_are_carried_through_a_pipeline(pipeline):
    words = pipeline[0].get_feature_names_out().tolist()
    assert as_fit(pipeline).feature_names.tolist() == words
    top = top_features(pipeline, 2)
    found = {frozenset(top["feature"][top["factor"] == k]) for k in ("k0", "k1")}
    assert found == {frozenset({"apple", "pear"}), frozenset({"iron", "zinc"})}
    assert Log1pNMF.of(pipeline).top_features(2).equals(top)
    assert pipeline.get_feature_names_out().tolist() == ["log1pnmf0", "log1pnmf1"]
    nameless = make_pipeline(FunctionTransformer(), Log1pNMF(2)).fit(TEXTS)
    assert as_fit(nameless).feature_names is None
    with pytest.raises(TypeError, match="got CountVectorizer"):
        as_fit(make_pipeline(CountVectorizer()).fit(["a text"]))


@pytest.mark.parametrize("by", ["score", "log2_fold_change", "weight"])
def test_features_are_listed_in_the_order_of_the_column_asked_for(fit, by):
    for _, listed in top_features(fit, 5, by=by).groupby("factor"):
        assert listed[by].is_monotonic_decreasing
        assert (listed["weight" if by == "weight" else "log2_fold_change"] > 0).all()


def test_typical_samples_have_a_large_share_and_enough_counts(fit):
    counts = np.array([[30, 0], [10, 0], [20, 20], [0, 9], [0, 0]])
    found = top_samples(fit_log1p_nmf(counts, 2, c=math.inf), 3, sample_names=list("abcde"))
    lists = {tuple(rows["sample"]) for _, rows in found.groupby("factor")}
    assert lists == {("a", "b", "c"), ("d", "c")}  # longest of those with share 1 first; none without it
    assert found["share"][found["sample"] == "c"].to_numpy() == pytest.approx([0.5, 0.5], abs=0.01)
    assert top_samples(fit, 1)["sample"].isin(["1", "3"]).all()  # numbers where there are no names


def test_what_pyldavis_takes(pipeline, fit):
    for source, vocabulary in (
        (pipeline, pipeline[0].get_feature_names_out().tolist()),
        (fit, list("01234")),
    ):
        found = topic_model(source).to_pyldavis()
        n, K = found["doc_topic_dists"].shape
        assert found["topic_term_dists"].shape == (K, len(found["vocab"]))
        np.testing.assert_allclose(found["doc_topic_dists"].sum(axis=1), 1.0)
        np.testing.assert_allclose(found["topic_term_dists"].sum(axis=1), 1.0)
        assert found["vocab"] == vocabulary
        assert len(found["doc_lengths"]) == n
    np.testing.assert_allclose(found["doc_lengths"], TEXTS.sum(axis=1), rtol=1e-5, atol=1e-9)
    np.testing.assert_allclose(found["term_frequency"], TEXTS.sum(axis=0), rtol=1e-5)
