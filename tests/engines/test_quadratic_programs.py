"""The quadratic programs of rows end at the optimum of the coordinates that no bound holds back at the start;
nearly, where Hessians have no inverse."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import lsq_linear

from log1pnmf._core import runnable_kernels, solve_programs

N = 60


def programs(K, seed, *, rank=None, spread=0.0, outward=0.5):
    """Hessians, gradients, starts and bounds; some coordinates are at a bound, some are held."""
    rng = np.random.default_rng(seed)
    roots = rng.normal(size=(N, K + 3 if rank is None else rank, K)) * np.exp(
        spread * rng.normal(size=(N, 1, K))
    )
    lower = np.where(rng.random((N, K)) < 0.3, rng.uniform(0.0, 0.5, (N, K)), 0.0)
    upper = np.where(rng.random((N, K)) < 0.3, lower + rng.uniform(0.0, 1.0, (N, K)), np.inf)
    upper = np.where(rng.random((N, K)) < 0.1, lower, upper)
    start = np.clip(lower + rng.uniform(-0.5, 1.5, (N, K)), lower, upper)
    target = start + outward * rng.normal(size=(N, K))  # where the slope would vanish
    hessian = np.einsum("nik,nil->nkl", roots, roots)
    return roots, hessian, np.einsum("nkl,nl->nk", hessian, start - target), start, lower, upper


def solved(kernel, program):
    hessian, gradient, start, lower, upper = program
    K = start.shape[1]
    packed = np.ascontiguousarray(hessian[(slice(None), *np.tril_indices(K))])
    values, decrease, curvature = np.empty_like(start), np.empty(N), np.empty(N)
    model = (packed, gradient, start, (lower, upper, np.zeros((1, K))))
    solve_programs(kernel, *model, values, decrease, curvature, 1)
    return values, decrease, curvature


def held(gradient, start, lower, upper):
    """Where the slope pushes against a bound."""
    return (start <= lower) & (gradient >= 0.0) | (start >= upper) & (gradient <= 0.0) | (lower == upper)


def check_optimum(program, found, tol=1e-9):
    """Within the bounds, with slopes that push against those that are reached; the figures are the step's."""
    (hessian, gradient, start, lower, upper), (values, decrease, curvature) = program, found
    assert (values >= lower).all()
    assert (values <= upper).all()
    step = values - start
    slope = gradient + np.einsum("nkl,nl->nk", hessian, step)
    size = tol * (
        np.abs(hessian).sum(axis=2) * np.abs(step).max(axis=1, keepdims=True) + np.abs(gradient) + 1e-9
    )
    free = ~held(gradient, start, lower, upper)
    assert (values == start)[~free].all()
    assert (slope >= -size)[free & (values < upper)].all()
    assert (slope <= size)[free & (values > lower)].all()
    along = np.einsum("nk,nk->n", gradient, step)
    bend = np.einsum("nk,nkl,nl->n", step, hessian, step)
    np.testing.assert_allclose(curvature, bend, rtol=1e-7, atol=1e-9 * (1.0 + bend.max()))
    np.testing.assert_allclose(decrease, -along - 0.5 * bend, rtol=1e-7, atol=1e-9 * (1.0 + bend.max()))
    assert (decrease >= 0.0).all()


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize("K", [1, 2, 3, 4, 5, 6, 7, 8, 9, 13, 16, 24])
@pytest.mark.parametrize("outward", [0.05, 0.5, 3.0])
def test_every_width_ends_at_the_optimum(kernel, K, outward):
    _, *program = programs(K, K, outward=outward)
    check_optimum(program, solved(kernel, program))


@given(K=st.integers(1, 12), rank=st.integers(1, 12), seed=st.integers(0, 10_000), spread=st.floats(0.0, 2.0))
def test_hessians_without_an_inverse(K, rank, seed, spread):
    """Columns that depend on others, of different scales. The worst of 3 million programs was 5e-3 off."""
    _, *program = programs(K, seed, rank=min(rank, K), spread=spread)
    check_optimum(program, solved(runnable_kernels()[0], program), tol=1e-2)


@pytest.mark.parametrize("kernel", runnable_kernels())
@pytest.mark.parametrize("K", [3, 6, 11])
def test_numbers_that_are_none_do_not_lead_out_of_the_bounds(kernel, K):
    """Sums that overflowed: the step is refused later, but its point has to be one."""
    _, *program = programs(K, 1, outward=3.0)
    program[1][:, 0] = np.nan
    program[0][: N // 2, -1, -1] = np.inf
    values = solved(kernel, program)[0]
    assert np.isfinite(values).all()
    assert ((values >= program[3]) & (values <= program[4])).all()


@pytest.mark.parametrize("kernel", runnable_kernels())
def test_the_same_as_bounded_least_squares(kernel):
    """``|R (x - target)|^2 / 2`` has the Hessian R'R, and its slope vanishes at the target."""
    roots, hessian, gradient, start, lower, upper = programs(6, 3)
    values = solved(kernel, (hessian, gradient, start, lower, upper))[0]
    stay = held(gradient, start, lower, upper)
    lower, upper = np.where(stay, start, lower), np.where(stay, start + 1e-12, upper)
    for i in range(N):
        target = start[i] - np.linalg.solve(hessian[i], gradient[i])
        best = lsq_linear(roots[i], roots[i] @ target, bounds=(lower[i], upper[i]), tol=1e-14)
        np.testing.assert_allclose(values[i], best.x, atol=1e-6)
