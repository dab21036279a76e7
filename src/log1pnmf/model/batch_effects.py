"""Effects of batches for the loadings and factors there are: the most likely ones, pulled towards 1.

Logarithms of effects sum to 0 over the batches, for every feature: the factors have the level of the feature.
Their weighed sum over the features is 0, for every batch: size factors and loadings have the level of the
batch. Where size factors are totals, features weigh by their counts, because a total has the effects of all
counts in it. Otherwise features with enough counts weigh the same: size factors are depths, and a
typical feature is captured as well in one batch as in another. Within that the objective is convex in the
logarithms.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from log1pnmf.counts.compress import dense_blocks
from log1pnmf.counts.counts import Counts

from .batches import LARGEST_EFFECT, Batches, balanced_effects
from .noise import NegativeBinomial, log1p_ratio
from .objective import BLOCK_BYTES
from .problem import Problem

Array = NDArray[np.float64]
Expand: TypeAlias = Callable[[Array], tuple[Array, Array, Array]]
"""Gives the objective of every feature, and its derivatives in the logarithms of effects."""

MOST_STEPS, LONGEST_STEP, PRECISION = 20, 1.0, 1e-6
FEW_STEPS, ROUGHLY = 4, 1e-3  # where every step computes all entries

LEVEL_ERROR, SHORT_STEP = 1e-9, 0.3
"""Effects whose levels are off, or that are far from their optimum, need more than one Newton step."""


def update_effects(
    model: Problem,
    loadings: Array,
    factors: Array,
    *,
    sums: Callable[[Array, Array], Array] | None = None,
    dispersed: Callable[[Array, Array, Array], Array] | None = None,
    n_steps: int | None = None,
) -> tuple[Batches, float]:
    """Find the effects that minimise the objective."""
    batches = model.batches
    assert batches is not None
    before, totals = batches.logs, batches.totals(model.counts)
    weights, pull = batches.feature_weights(model.counts), batches.strength
    if model.noise.zero_loss_is_mean:
        seen = totals + pull
        own = mean_sums(model, loadings, factors) if sums is None else sums(loadings, factors)
        expected = own + pull

        def expand(logs: Array) -> tuple[Array, Array, Array]:
            bend = expected * np.exp(logs)
            return (bend - seen * logs).sum(axis=0), bend - seen, bend

        # a few steps from effects that are near; otherwise from those that leave out the levels of batches
        off = np.abs(np.log(seen / expected) - before)
        fresh = bool(off.max(initial=0.0) > LONGEST_STEP or (batches.effects == 1.0).all())
        start = _levelled(np.log(balanced_effects(seen, expected)), weights) if fresh else before
        new, gain = _minimised(expand, start, weights, MOST_STEPS, PRECISION)
        if fresh:
            gain = float(np.sum(expand(before)[0] - expand(new)[0]))
    else:

        def expand(logs: Array) -> tuple[Array, Array, Array]:
            effects = np.exp(logs)
            value, slope, bend = find(effects, loadings, factors)
            value = value + pull * (effects - logs) - totals * logs
            return value.sum(axis=0), slope + pull * (effects - 1.0), bend + pull * effects

        find = partial(dispersed_sums, model) if dispersed is None else dispersed
        how = (FEW_STEPS, ROUGHLY) if n_steps is None else (n_steps, PRECISION)
        new, gain = _minimised(expand, before, weights, *how)
    return (replace(batches, effects=np.exp(new)), gain) if gain > 0.0 else (batches, 0.0)


def newton_effects(batches: Batches, counts: Counts, sums: Array) -> Array | None:
    """Return the effects after one Newton step, for Poisson noise; None where one is not enough."""
    effects, logs, weights = batches.effects, batches.logs, batches.feature_weights(counts)
    levels = np.abs(logs.sum(axis=0)).max(initial=0.0), np.abs(logs @ weights).max(initial=0.0)
    if not max(levels) <= LEVEL_ERROR:
        return None
    bend, seen = (sums + batches.strength) * effects, batches.totals(counts) + batches.strength
    step = _newton(bend - seen, bend, weights)
    if not max(step.max(initial=0.0), -step.min(initial=0.0)) <= SHORT_STEP:
        return None
    growth = np.expm1(step)
    change = np.vdot(bend, growth) - np.vdot(seen, step)
    growth += 1.0
    growth *= effects
    if max(growth.max(initial=0.0), 1.0 / growth.min(initial=1.0)) > LARGEST_EFFECT:
        return None
    return growth if change < 0.0 else effects


def first_effects(batches: Batches, counts: Counts, sizes: Array) -> Batches:
    """Return the effects that explain the totals of features in batches, as if all samples were alike."""
    totals = batches.totals(counts)
    every = totals.sum(axis=0)
    expected = batches.sums(sizes)[:, None] * (every / sizes.sum())
    logs = np.log(balanced_effects(totals + batches.strength, expected + batches.strength))
    return replace(batches, effects=np.exp(_levelled(logs, batches.feature_weights(counts))))


def mean_sums(model: Problem, loadings: Array, factors: Array) -> Array:
    """Sum of the means of every feature in each batch, were its effects 1; batches x features.

    Where a quadratic replaces a zero, it is its mean: the objective has that one.
    """
    batches, link, sizes, zeros = model.batches, model.link, model.size_factors, model.zeros
    assert batches is not None
    if link.is_identity:
        return np.asarray((batches.members(sizes) @ loadings) @ factors.T)
    members, total = batches.members(model.exposure).tocsc(), np.zeros(batches.effects.shape)
    for block in dense_blocks(model.counts.shape, BLOCK_BYTES / 48):
        eta = loadings[block] @ factors.T
        means = link.em(eta)
        if zeros is not None:
            own = zeros.of_samples(block)
            approximated = own.in_place(model.counts.by_row.to_dense(block))
            means = np.where(approximated, zeros.constant + eta * (own.a1 + own.a2 * eta), means)
        total += members[:, block] @ means
    return total


def _levelled(logs: Array, weights: Array) -> Array:
    """Take off the levels of features and of batches."""
    logs = logs - logs.mean(axis=0)
    return logs - (logs @ weights)[:, None]


def _minimised(
    expand: Expand, start: Array, weights: Array, most: int, precision: float
) -> tuple[Array, float]:
    """Minimise by Newton's steps with both kinds of sums held at 0; gives the best point and its gain."""
    largest = np.log(LARGEST_EFFECT)
    logs = best = start
    value, slope, bend = expand(logs)
    first = lowest = float(value.sum())
    for _ in range(most):
        step = _newton(slope, bend, weights)
        longest = float(np.abs(step).max(initial=0.0))
        if longest <= precision:
            break
        # far from the optimum every feature moves by a bounded amount, and the levels are put right
        step = step / np.maximum(1.0, np.abs(step).max(axis=0) / LONGEST_STEP)
        logs = _levelled(np.clip(logs + step, -largest, largest), weights)
        value, slope, bend = expand(logs)
        if value.sum() < lowest:
            best, lowest = logs, float(value.sum())
        if longest <= np.sqrt(precision):  # the next step would be about its square
            break
    return best, first - lowest


def _newton(slope: Array, bend: Array, weights: Array) -> Array:
    """Newton's step whose sums over batches, and weighed ones over features, are 0.

    ``step_bj = -(slope_bj + x_j + z_b w_j) / bend_bj``: x is found for given z, and z from B equations.
    """
    inverse = 1.0 / bend
    share = inverse / inverse.sum(axis=0)
    free = -inverse * slope
    free -= share * free.sum(axis=0)
    # d(weighed sum of batch b) / d z_a
    by_weight = weights**2 * inverse
    matrix = np.diag(by_weight.sum(axis=1)) - by_weight @ share.T
    z = np.linalg.lstsq(matrix, free @ weights, rcond=1e-12)[0]
    pushed = inverse * (z[:, None] * weights)
    return np.asarray(free - (pushed - share * pushed.sum(axis=0)))


def dispersed_sums(model: Problem, effects: Array, loadings: Array, factors: Array) -> Array:
    """Sum loss and its derivatives in the logarithms of `effects` over batches: 3 x batches x features.

    With negative binomial noise and ``D = 1 + phi mean`` the loss is ``(y + r) log(D) - y log(mean)``, its
    derivative ``(mean - y) / D`` and its second one ``mean (1 + phi y) / D^2``. What ``y log(q)`` adds to the
    loss is left out.
    """
    batches, noise = model.batches, model.noise
    assert batches is not None
    assert isinstance(noise, NegativeBinomial)
    phi, members = noise.dispersion, batches.members().tocsc()
    sums = np.zeros((3, *batches.effects.shape))
    for block in dense_blocks(model.counts.shape, BLOCK_BYTES / 48):
        means = model.size_factors[block, None] * model.link.mean(loadings[block] @ factors.T)
        means *= effects[batches.labels[block]]
        y, ratio = model.counts.by_row.to_dense(block), 1.0 / (1.0 + phi * means)
        sums[0] += members[:, block] @ (means * log1p_ratio(phi * means) - y * np.log(ratio))
        sums[1] += members[:, block] @ ((means - y) * ratio)
        sums[2] += members[:, block] @ (means * (1.0 + phi * y) * ratio**2)
    return sums
