"""Batches in the compiled engine, against the reference: half-steps, losses, zeros, threads."""

from dataclasses import replace

import numpy as np
import pytest
from tests.engines.problems import BATCHED as CASES
from tests.engines.problems import K, N, other_engines, point
from tests.reference_engine import ReferenceEngine

from log1pnmf._core import runnable_kernels
from log1pnmf.counts import Counts, open_counts
from log1pnmf.counts.passes import survey
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.streaming import StreamingEngine
from log1pnmf.model.batch_effects import update_effects
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import POISSON, ShiftedLog
from log1pnmf.model.problem import Problem
from log1pnmf.model.zeros import AdaptiveZeros, caps_for, quadratic


@pytest.mark.parametrize("name", [name for name in CASES if "adaptive" in name])
def test_zeros_are_surveyed_with_the_exposure_of_their_batch(name):
    problem = CASES[name]
    native, caps = NativeEngine(problem, 1), caps_for(1e-2, dispersed=problem.noise is not POISSON)
    found = native.survey_zeros(*point(), caps)
    stored, exposure = native.collect_zeros(*point(), problem.zeros.caps)
    for engine in other_engines(problem):
        expected = engine.survey_zeros(*point(), caps)
        same, sums = engine.collect_zeros(*point(), problem.zeros.caps)
        assert (found.n_above == expected.n_above).all()
        assert found.error == pytest.approx(expected.error, rel=0.02, abs=3e-5)  # many quadratics fit few
        assert (stored.indices == same.indices).all()
        assert exposure == pytest.approx(sums, rel=1e-12)
        errors = engine.zero_errors(*point())
        assert native.zero_errors(*point()) == pytest.approx(errors, rel=1e-6, abs=1e-8)


@pytest.mark.parametrize("kernel", runnable_kernels())
def test_means_of_rows_that_take_several_blocks_are_summed_up(kernel):
    rng, n = np.random.default_rng(9), 700
    batches = Batches(rng.integers(0, 9, n), np.exp(rng.normal(0.0, 0.5, (9, 3))), 3.0)
    counts, sizes = Counts.from_any(rng.poisson(3.0, (n, 3))), rng.uniform(0.5, 2.0, n)
    problem = Problem(counts, sizes, ShiftedLog(1.0), quadratic(ShiftedLog(1.0)), batches=batches)
    loadings, factors = rng.uniform(0.1, 0.9, (n, K)), rng.uniform(0.1, 0.9, (3, K))
    native, reference = NativeEngine(problem, 1, kernel), ReferenceEngine(problem)
    assert native.batch_sums(loadings, factors) == pytest.approx(
        reference.batch_sums(loadings, factors), rel=1e-12
    )
    for _ in range(4):
        step = native.half_step(problem.factors_side, factors, loadings, with_batch_sums=True)
        factors = step.values
        assert step.batch_sums == pytest.approx(reference.batch_sums(loadings, factors), rel=1e-10)


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize("name", ["exact, c=1.0", "approximate, c=1.0", "adaptive, c=0.05", "large counts"])
def test_sums_after_short_steps_are_those_of_the_improved_factors(name, kernel):
    problem, (loadings, factors) = CASES[name], point()
    side, native = problem.factors_side, NativeEngine(problem, 1, kernel)
    for _ in range(4):  # the last steps are short: means then come from those before by a series
        step = native.half_step(side, factors, loadings, with_batch_sums=True)
        assert (step.values == native.half_step(side, factors, loadings).values).all()
        factors = step.values
        assert step.batch_sums == pytest.approx(native.batch_sums(loadings, factors), rel=1e-10)


def test_one_newton_step_of_the_effects_leads_to_their_optimum():
    problem = CASES["exact, c=1.0"]
    means = NativeEngine(problem, 1).batch_sums(*point())
    best = update_effects(problem, *point(), sums=lambda *_: means)[0]
    for away in (best.effects**3, best.effects * 1.01):  # far, or of another level
        engine = NativeEngine(replace(problem, batches=replace(best, effects=away)), 1)
        assert engine.next_effects(means) is None
    logs = best.logs + 1e-3 * np.random.default_rng(0).normal(size=best.effects.shape)
    logs -= logs.mean(axis=0)
    logs -= (logs @ best.feature_weights(problem.counts))[:, None]
    near = NativeEngine(replace(problem, batches=replace(best, effects=np.exp(logs))), 1)
    assert near.next_effects(means) == pytest.approx(best.effects, rel=1e-5)


@pytest.mark.parametrize("name", CASES)
def test_chunks_add_up_to_the_whole(chunks_of, name):
    problem, (loadings, factors) = CASES[name], point()
    chunks = survey(open_counts(chunks_of(problem.counts.to_scipy(), [0, 30, 31, 70, N])))
    own, whole = replace(problem, counts=chunks), NativeEngine(problem, 1)
    if isinstance(problem.zeros, AdaptiveZeros):  # chunks find theirs in every pass
        stored, exposure = StreamingEngine(own, 1).collect_zeros(*point(), problem.zeros.caps)
        own = replace(own, zeros=replace(problem.zeros, stored=stored, exposure=exposure))
    streamed = StreamingEngine(own, 1)
    assert streamed.loss(loadings, factors) == pytest.approx(whole.loss(loadings, factors), rel=1e-10)
    gradients = [one.evaluate(one.problem.factors_side, factors, loadings)[1] for one in (streamed, whole)]
    assert gradients[0] == pytest.approx(gradients[1], rel=1e-8, abs=1e-8 * np.abs(gradients[1]).max())
    ours, theirs = (
        update_effects(
            one.problem,
            loadings,
            factors,
            sums=one.batch_sums,
            dispersed=getattr(one, "dispersed_sums", None),
        )[0].effects
        for one in (streamed, whole)
    )
    assert ours == pytest.approx(theirs, rel=1e-8)
