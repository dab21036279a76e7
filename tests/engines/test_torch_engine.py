"""The PyTorch engine against the NumPy truth; on a card with ``-m gpu``, but for zeros and refusals."""

import gc
import math
import re
import sys
import warnings
import weakref
from unittest.mock import Mock

import anndata
import numpy as np
import pytest
from scipy import sparse, stats

torch = pytest.importorskip("torch")
pytest.importorskip("triton")

from tests.engines.problems import problems  # noqa: E402
from tests.reference_engine import _exposure_of, both_sides, example  # noqa: E402

import log1pnmf as lp  # noqa: E402
from log1pnmf import fit_log1p_nmf  # noqa: E402
from log1pnmf._common.arrays import on_host  # noqa: E402
from log1pnmf.cli import main  # noqa: E402
from log1pnmf.counts.counts import Counts  # noqa: E402
from log1pnmf.engines import registry  # noqa: E402
from log1pnmf.engines.native import NativeEngine  # noqa: E402
from log1pnmf.engines.registry import resolve_engine  # noqa: E402
from log1pnmf.engines.torch import kernels  # noqa: E402
from log1pnmf.engines.torch import rows as torch_rows  # noqa: E402
from log1pnmf.engines.torch import zeros as torch_zeros  # noqa: E402
from log1pnmf.engines.torch.engine import TorchEngine  # noqa: E402
from log1pnmf.fitting import starts  # noqa: E402
from log1pnmf.model import zeros as zero_survey  # noqa: E402
from log1pnmf.model.noise import ShiftedLog  # noqa: E402
from log1pnmf.model.objective import entry_gradient, negative_log_likelihood  # noqa: E402
from log1pnmf.model.problem import Bounds, Problem  # noqa: E402
from log1pnmf.model.zeros import caps_for  # noqa: E402

ON_A_CARD = pytest.mark.gpu
DEVICES = ["cpu", pytest.param("cuda", marks=ON_A_CARD)]
ACCURACY = {"float64": 1e-10, "float32": 3e-6}
FORMS = [name for name in problems() if not re.search(r"wide|large|quartic", name)]
"""Of what single precision holds, and this engine has."""


def summands(problem, side, start, design):
    """Sum of the sizes of what a gradient is the sum of: rounding is relative to this."""
    y, eta = side.rows.to_scipy().toarray(), start @ design.T
    t = np.stack([_exposure_of(side, i) for i in range(len(start))])
    push = entry_gradient(np.zeros_like(y), eta, t, problem.link)
    pull = entry_gradient(y, eta, np.zeros_like(t), problem.link)
    return (np.abs(push) + np.abs(pull)) @ np.abs(design) + 1e-300


def test_quartics_are_refused():
    with pytest.raises(ValueError, match="has no quartics"):
        TorchEngine(problems()["quartic, K=5"][0], "cpu")


@ON_A_CARD
@pytest.mark.parametrize("precision", ACCURACY)
@pytest.mark.parametrize("name", FORMS)
def test_the_laws_of_half_steps_hold(name, precision):
    """Losses and gradients are those of the compiled engine; steps lower the loss and end at the optimum."""
    problem, loadings, factors = problems()[name]
    engine, native = TorchEngine(problem, precision=precision), NativeEngine(problem, 1)
    close, rng = ACCURACY[precision], np.random.default_rng(1)
    for side, start, design in both_sides(problem, loadings, factors):
        truth, gradient = native.evaluate(side, start, design)
        size, terms = summands(problem, side, start, design), max(abs(truth), problem.counts.total)
        step = engine.half_step(side, start, design)
        for loss, slope in (engine.evaluate(side, start, design), (step.loss, step.gradient)):
            assert loss == pytest.approx(truth, abs=close * terms)  # which nearly cancel out in the loss
            np.testing.assert_allclose(slope / size, gradient / size, atol=3 * close)
        upper = float(np.quantile(start, 0.9))
        for bounds in (Bounds(), Bounds(upper=upper, penalty=0.1 * np.arange(start.shape[1]))):
            rows, before = bounds.clip(start * rng.uniform(0.05, 5.0, start.shape)), math.inf
            for _ in range(40):
                rows = engine.half_step(side, rows, design, bounds=bounds).values
                assert np.array_equal(bounds.clip(rows), rows)
                after = native.evaluate(side, rows, design)[0] + bounds.cost(rows)
                assert after <= before + 1e-6 * abs(before)
                before = after
            best = native.half_step(side, rows, design, bounds=bounds).values
            gain = before - native.evaluate(side, best, design)[0] - bounds.cost(best)
            assert gain < (1e-7 if precision == "float64" else 1e-4) * terms
    assert engine.loss(loadings, factors) == pytest.approx(native.loss(loadings, factors), abs=close * terms)
    if problem.batches is not None:
        sums = native.batch_sums(loadings, factors)
        assert engine.batch_sums(loadings, factors) == pytest.approx(sums, rel=1e-10)


@ON_A_CARD
@pytest.mark.parametrize(("precision", "close"), [("float64", 1e-9), ("float32", 1e-3)])
@pytest.mark.parametrize(("c", "kind"), [(0.3, "nb"), (math.inf, "nb adaptive")])
def test_steps_with_dispersions_are_those_of_the_native_engine(c, kind, precision, close):
    problem, loadings, factors = example(c, kind, 3, n=40)
    if kind == "nb adaptive" and precision == "float64":
        close = 1e-7  # rounding may decide whether a row takes another step
    for side, start, design in both_sides(problem, loadings, factors):
        step = TorchEngine(problem, precision=precision).half_step(side, start, design)
        expected = NativeEngine(problem, 1).half_step(side, start, design)
        np.testing.assert_allclose(step.values, expected.values, atol=close * expected.values.max())
        assert step.predicted_decrease == pytest.approx(expected.predicted_decrease, rel=100 * close)


@ON_A_CARD
@pytest.mark.parametrize(
    ("c", "kind"), [(1e-3, None), (1.0, "chebyshev"), (0.3, "adaptive"), (math.inf, None)]
)
def test_the_curvature_along_a_step_rises_by_no_more_than_is_said(c, kind):
    """Where the sum over entries allows a full step, the Hessian along it stays below its double."""
    problem, loadings, factors = example(c, kind, 3)
    engine, rng = TorchEngine(problem, precision="float64"), np.random.default_rng(1)
    for side, start, fixed in both_sides(problem, loadings, factors):
        design, block = engine._design(side, fixed), next(engine._rows(side).blocks())
        own, rows, b = engine._keep(side).of(block), block.numbers, engine.adopt(start)
        step = b * engine.adopt(rng.uniform(-0.9, 1.5, start.shape))
        known = torch.zeros(len(b), dtype=torch.bool, device=b.device)
        how = {"own": own, "known": known, "limits": (-1.0, -1.0)}
        rise = kernels.reach(block, rows, b, step, design, **how)[2]
        assert torch.isfinite(rise).all() == design.form.sums_rises
        along = [
            torch.einsum(
                "rk,rkl,rl->r",
                step,
                kernels.evaluate(block, rows, b + part * step, design, own=own, hessian=True).hessian,
                step,
            )
            for part in np.linspace(0.0, 1.0, 9)
        ]
        assert all((one - along[0] <= rise * (1 + 1e-9) + 1e-9).all() for one in along)


@ON_A_CARD
@pytest.mark.parametrize("kind", [None, "chebyshev", "adaptive", "nb", "nb adaptive"])
def test_a_count_whose_mean_is_zero_is_lifted(kind):
    problem, loadings, factors = example(0.3, kind, 2)
    loadings[0] = 0.0
    step = TorchEngine(problem).half_step(problem.loadings_side, loadings, factors)
    assert np.isfinite(step.loss)
    assert np.isfinite(step.values).all()
    assert (step.values[0] > 0).any()
    assert (step.values[len(loadings) // 2] == 0).all()  # the row without counts


@ON_A_CARD
@pytest.mark.parametrize(
    ("c", "likelihood", "noise"),
    [
        (1.0, "chebyshev", "poisson"),
        (1.0, "adaptive", "poisson"),
        (0.01, "exact", "poisson"),
        (math.inf, "adaptive", "nb"),
    ],
)
def test_a_fit_is_that_of_the_native_engine(c, likelihood, noise, monkeypatch):
    problem, loadings, factors = example(c, None, 3, n=30, m=40)
    tol = 1e-9 if noise == "poisson" else 1e-4
    options = {"c": c, "likelihood": likelihood, "tol": tol, "max_iter": 400, "noise": noise}
    start = (loadings, factors * problem.link.alpha)
    fits = []
    for engine, single in (("native", True), ("torch", True), ("torch", False)):
        monkeypatch.setattr(registry, "_single_is_enough", lambda counts, single=single: single)
        fits.append(fit_log1p_nmf(problem.counts, 3, init=start, engine=engine, **options))
    for fit, close in zip(fits[1:], (1e-6, 1e-8), strict=True):
        if likelihood == "adaptive" or noise == "nb":  # zeros may be chosen a little differently
            near = 1e-5 if noise == "poisson" else 1e-3
            assert fit.log_likelihood == pytest.approx(fits[0].log_likelihood, rel=near)
        else:
            assert fit.objective == pytest.approx(fits[0].objective, rel=close)
        assert isinstance(fit.loadings, np.ndarray)
        assert list(fit.history["likelihood"])[-1] == list(fits[0].history["likelihood"])[-1]


@ON_A_CARD
@pytest.mark.parametrize("kind", ["chebyshev", "adaptive"])
def test_the_same_bits_every_time(kind):
    problem, loadings, factors = example(1.0, kind, 5, n=60, m=300)
    steps = [TorchEngine(problem).half_step(problem.factors_side, factors, loadings) for _ in range(3)]
    for step in steps[1:]:
        assert step.loss == steps[0].loss
        np.testing.assert_array_equal(step.values, steps[0].values)


@ON_A_CARD
@pytest.mark.parametrize(("c", "kind"), [(1.0, None), (0.3, "adaptive"), (math.inf, None)])
def test_streamed_blocks_give_what_resident_rows_give(c, kind, monkeypatch):
    problem, loadings, factors = example(c, kind, 3, n=50, m=70)
    whole = TorchEngine(problem)
    parts = TorchEngine(problem)
    steps = {}
    for engine, streamed in ((whole, False), (parts, True)):
        monkeypatch.setattr(torch_rows, "fits", lambda *_, fits=not streamed: fits)
        kept = {
            id(side.rows): torch_rows.DeviceRows.of(
                side.rows, engine.device, torch.float32, resident=not streamed, streamed_entries=40
            )
            for side in (problem.loadings_side, problem.factors_side)
        }
        monkeypatch.setattr(engine, "_rows", lambda side, kept=kept: kept[id(side.rows)])
        assert len(list(engine._rows(problem.loadings_side).blocks())) > (10 if streamed else 0)
        for side, start, design in both_sides(problem, loadings, factors):
            step = engine.half_step(side, start, design)
            steps.setdefault(streamed, []).append(step)
    for one, other in zip(steps[False], steps[True], strict=True):
        assert other.loss == pytest.approx(one.loss, rel=1e-6)
        np.testing.assert_allclose(other.values, one.values, atol=1e-4 * one.values.max())
        np.testing.assert_allclose(other.gradient, one.gradient, atol=1e-5 * np.abs(one.gradient).max())


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("precision", ["float64", "float32"])
@pytest.mark.parametrize(("kind", "surveyed"), [("adaptive", 100), ("nb adaptive", 100), ("adaptive", 23)])
def test_zeros_are_those_of_the_native_engine(kind, surveyed, precision, device, monkeypatch):
    """In blocks of a few features, and of counts that come one block at a time; 23: of every third sample."""
    monkeypatch.setattr(zero_survey, "SURVEYED", surveyed)
    problem, loadings, factors = example(0.3, kind, 3, n=70, m=25)
    monkeypatch.setattr(torch_zeros, "DENSE_BYTES", 8 * 70 * 4)
    engine, native = TorchEngine(problem, device, precision), NativeEngine(problem, 1)
    rows = problem.factors_side.rows
    kept = torch_rows.DeviceRows.of(rows, engine.device, torch.float32, resident=False, streamed_entries=300)
    monkeypatch.setattr(engine, "_rows", lambda side: kept)
    caps = caps_for(1e-4)
    surveys = [one.survey_zeros(loadings, factors, caps) for one in (engine, native)]
    np.testing.assert_array_equal(surveys[0].n_above, surveys[1].n_above)
    close = (1e-6, 1e-12) if kind == "adaptive" else (1e-3, 1e-6)
    np.testing.assert_allclose(surveys[0].error, surveys[1].error, rtol=close[0], atol=close[1])
    stored, exposure = engine.collect_zeros(loadings, factors, problem.zeros.caps)
    for found, expected in (
        (stored, problem.zeros.stored),
        (stored.transposed, problem.zeros.stored.transposed),
    ):
        assert found.shape == expected.shape
        np.testing.assert_array_equal(found.indptr, expected.indptr)
        np.testing.assert_array_equal(found.indices, expected.indices)
    np.testing.assert_allclose(exposure, problem.zeros.exposure)
    errors = engine.zero_errors(1.1 * loadings, factors)
    np.testing.assert_allclose(errors, native.zero_errors(1.1 * loadings, factors), rtol=1e-9)
    assert errors == engine.zero_errors(1.1 * loadings, factors)


def test_coordinate_solver_is_refused_before_any_work():
    with pytest.raises(ValueError, match="engine='torch' cannot be used here: it has row_solver"):
        fit_log1p_nmf([[1, 2], [3, 4]], 1, engine="torch", row_solver="coordinate")


def test_auto_takes_a_card_only_where_there_is_one_and_enough_to_do(monkeypatch):
    counts = Counts.from_any(np.ones((400, 400)))
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    assert resolve_engine("auto", counts, 10) == "native"
    assert resolve_engine("auto", counts, 128) == "torch"
    assert resolve_engine("auto", counts, 129) == "native"
    assert resolve_engine("auto", counts, 128, "coordinate") == "native"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert resolve_engine("auto", counts, 128) == "native"
    assert resolve_engine("native", counts, 10_000) == "native"


def test_without_a_card_and_for_too_many_factors_it_is_refused(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(ValueError, match=r"cannot be used here: it needs a CUDA GPU, .* use engine='native'"):
        fit_log1p_nmf([[1, 2], [3, 4]], 1, engine="torch")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    with pytest.raises(ValueError, match="at most 128 factors, got n_components=129; use engine='native'"):
        fit_log1p_nmf(np.ones((130, 130)), 129, engine="torch")


def test_pytorch_is_not_loaded_where_there_is_no_driver(monkeypatch):
    monkeypatch.delitem(sys.modules, "torch")
    monkeypatch.setattr(registry.ctypes, "CDLL", Mock(side_effect=OSError("no such library")))
    monkeypatch.setattr(registry.Path, "exists", lambda _: False)
    assert resolve_engine("auto", Counts.from_any(np.ones((400, 400))), 128) == "native"
    assert "torch" not in sys.modules


@ON_A_CARD
@pytest.mark.parametrize("size", [1e4, 1e7])
@pytest.mark.parametrize("c", [1.0, math.inf])
def test_the_log_likelihood_of_large_counts_holds(size, c):
    rng = np.random.default_rng(0)
    counts = rng.poisson(size * np.outer(rng.uniform(0.5, 2.0, 6), rng.uniform(0.5, 2.0, 5)))
    counts[0, 0] = 0
    fit = fit_log1p_nmf(counts, 2, c=c, engine="torch", likelihood="exact", tol=1e-3)
    mean = fit.size_factors[:, None] * fit.link.inverse(fit.loadings @ fit.factors.T)
    assert fit.log_likelihood == pytest.approx(float(stats.poisson.logpmf(counts, mean).sum()), abs=0.1)


@ON_A_CARD
@pytest.mark.parametrize(
    "parameters",
    [{}, {"c": math.inf}, {"noise": "nb"}, {"likelihood": "adaptive"}, {"batch": np.arange(12) % 3}],
    ids=str,
)
@pytest.mark.parametrize("largest", [80.0])
def test_the_last_figures_of_a_fit_are_in_double_precision(largest, parameters):
    """In single precision one large count hides the others; the reported likelihood is that of the fit."""
    counts = np.random.default_rng(0).poisson(3.0, (12, 9)).astype(float)
    counts[0, 0] = largest
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # whether single precision gets to an optimum is not the question
        fit = fit_log1p_nmf(counts, 2, engine="torch", max_iter=20, **parameters)
    problem = fit.problem(Counts.from_any(counts))
    exact = negative_log_likelihood(problem, fit.loadings, fit.factors / fit.link.alpha)
    assert fit.log_likelihood == pytest.approx(-exact, rel=1e-10)
    signed = 0.0 if fit.approximate_log_likelihood is None else fit.certificate.gap
    if fit.settings.noise == "poisson":  # no prior of dispersions in the objective
        assert fit.objective == pytest.approx(exact - signed + problem.cost, rel=1e-10)


# ---------- counts on a device: brought there, gone with those of the host

N, M = 30, 50


def small(n_components=3):
    """One feature has no counts."""
    rng = np.random.default_rng(0)
    loadings, factors = (rng.uniform(0.2, 0.8, (size, n_components)) for size in (N, M))
    y = rng.poisson(np.expm1(loadings @ factors.T))
    y[:, M // 2], y[:, 0] = 0, 1
    return Problem(Counts.from_any(y), np.ones(N), ShiftedLog(1.0)), loadings, factors


@pytest.mark.parametrize("device", DEVICES)
def test_counts_are_uploaded_once_and_leave_with_the_engine(device, monkeypatch):
    monkeypatch.setattr(torch_rows, "SORTED_ENTRIES", 100)
    problem, loadings, factors = small()
    engine = TorchEngine(problem, device)
    engine.collect_zeros(loadings, factors, np.ones(M))
    counts, uploaded = problem.counts, engine.problem.counts
    assert engine.with_problem(problem).problem.counts is uploaded
    columns, expected = uploaded.by_column, counts.by_column
    for name in ("indptr", "indices", "values"):
        np.testing.assert_array_equal(on_host(getattr(columns, name)), getattr(expected, name))
    np.testing.assert_allclose(columns.row_sums(), expected.row_sums())
    for name in ("indptr", "values", "times"):
        np.testing.assert_array_equal(getattr(uploaded.tally, name), getattr(counts.tally, name))
    assert uploaded.n_empty == counts.n_empty
    assert counts.n_empty[1] == 1
    for name in ("log_factorial", "stirling"):
        assert getattr(uploaded, name) == pytest.approx(getattr(counts, name), rel=1e-12)
    assert uploaded.on_host().by_row is counts.by_row
    left = weakref.ref(uploaded.there)
    del uploaded, engine, columns
    gc.collect()
    assert left() is None


@ON_A_CARD
@pytest.mark.parametrize(
    "options",
    [{}, {"noise": "nb"}, {"size_factors": "fit"}, {"batch": np.repeat([0, 1], 30)}, {"c": math.inf}],
    ids=lambda one: next(iter(one), "exact"),
)
def test_a_fit_of_counts_larger_than_the_card_is_the_same(options, monkeypatch):
    Y = np.random.default_rng(0).poisson(0.7, size=(60, 40)) + np.eye(60, 40, dtype=int)
    options = {"engine": "torch", "max_iter": 8, "init": "nndsvd"} | options
    uploaded = _quiet(Y, 2, **options)
    monkeypatch.setattr(torch_rows, "fits", lambda size, device: False)
    streamed = _quiet(Y, 2, **options)
    assert uploaded.objective == pytest.approx(streamed.objective, rel=1e-9)
    np.testing.assert_allclose(uploaded.factors, streamed.factors, atol=1e-6 * streamed.factors.max())
    assert uploaded.data == streamed.data
    assert [sum("in blocks" in one for one in fit.messages) for fit in (uploaded, streamed)] == [0, 1]


def _quiet(*args, **options):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return fit_log1p_nmf(*args, **options)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("layout", ["strided", "sparse_csr", "sparse_csc", "sparse_coo"])
@pytest.mark.filterwarnings("ignore:Sparse CS. tensor support is in beta")
def test_counts_on_a_device_are_copied_to_the_host(device, layout):
    y = small()[0].counts.to_scipy().toarray()
    given = torch.tensor(y, device=device)
    given = given if layout == "strided" else given.to_sparse(layout=getattr(torch, layout))
    counts = Counts.from_any(given)
    np.testing.assert_array_equal(counts.to_scipy().toarray(), y)
    fits = [fit_log1p_nmf(data, 2, likelihood="chebyshev") for data in (given, y)]
    np.testing.assert_array_equal(fits[0].factors, fits[1].factors)


# ---------- the call users make, below and above every threshold, through each face

MANY = 1000 + starts.MOST_SEARCHED
"""More samples than starts are compared on."""


def table(n, m=24, seed=0):
    """Counts of three factors."""
    rng = np.random.default_rng(seed)
    means = rng.dirichlet(np.full(3, 0.3), n) @ rng.gamma(0.4, 4.0, (3, m))
    return sparse.csr_matrix(rng.poisson(means + 0.05).astype(np.float32))


def check(counts, **settings):
    """The default call ends where that of the compiled engine does."""
    ours = lp.Log1pNMF(2, engine="torch", random_state=0, **settings).fit(counts).fit_
    others = lp.Log1pNMF(2, engine="native", random_state=0, **settings).fit(counts).fit_
    assert ours.stopped == others.stopped == "converged"
    assert ours.log_likelihood == pytest.approx(others.log_likelihood, rel=1e-3)


@ON_A_CARD
@pytest.mark.parametrize("noise", ["poisson", "nb", "auto"])
@pytest.mark.parametrize("c", [0.1, 1.0, np.inf])
@pytest.mark.parametrize("n", [200, 3000, 1 + starts.MOST_SEARCHED, 2 * starts.MOST_SEARCHED])
def test_every_noise_below_and_above_each_threshold(n, c, noise):
    check(table(n), c=c, noise=noise)


@ON_A_CARD
def test_batches_and_annotated_data():
    adata = anndata.AnnData(table(MANY), obs={"lane": np.tile(["a", "b"], MANY // 2)})
    lp.tl.log1p_nmf(adata, 2, batch_key="lane", engine="torch")
    assert np.isfinite(adata.obsm["X_log1p_nmf"]).all()


@ON_A_CARD
def test_the_command_line(tmp_path):
    counts = tmp_path / "counts.h5ad"
    anndata.AnnData(table(MANY)).write_h5ad(counts)
    assert main(["fit", str(counts), "-k", "2", "--engine", "torch", "-o", str(tmp_path / "out")]) == 0
