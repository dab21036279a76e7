"""Speed on a CUDA card, with data made there: ``python -m benchmarks.gpu [--only iterations ...]``."""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path
from unittest.mock import patch

import numpy as np
import torch
from scipy import sparse

from log1pnmf.counts.counts import Counts
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.torch import rows
from log1pnmf.engines.torch.engine import TorchEngine
from log1pnmf.fitting.solver import Extrapolation, alternate
from log1pnmf.model.batches import Batches
from log1pnmf.model.noise import POISSON, NegativeBinomial, ShiftedLog
from log1pnmf.model.problem import NON_NEGATIVE, Problem
from log1pnmf.model.zeros import AdaptiveZeros, caps_for, choose, quadratic

from .gpu_data import CASES, simulate
from .table import as_markdown

FORMS = ("chebyshev", "adaptive", "exact", "nb adaptive", "nb exact", "batches adaptive", "batches exact")
"""What an iteration is timed with; "nb" is negative binomial noise, and there are eight batches."""


def problem_of(counts, c, form):
    link, noise, batches = ShiftedLog(c), POISSON, None
    n, m = counts.shape
    if form.startswith("nb"):
        noise = NegativeBinomial(np.geomspace(0.05, 1.0, m))
    if form.startswith("batches"):
        rng = np.random.default_rng(0)
        batches = Batches(rng.integers(0, 8, n), np.exp(rng.normal(0.0, 0.3, (8, m))), 1.0)
    zeros = quadratic(link) if form == "chebyshev" else None
    return Problem(counts, counts.size_factors("total"), link, zeros, noise, batches)


def iterations(engine, L, F, n):
    """Seconds and loss of every iteration."""
    torch.cuda.synchronize()
    times, losses, last = [], [], time.perf_counter()
    steps = alternate(engine, L, F, extrapolation=Extrapolation(), max_iter=n)
    for step in steps:
        torch.cuda.synchronize()
        now = time.perf_counter()
        times.append(now - last)
        losses.append(step.objective)
        last = now
    return times, losses


def adaptive(engine, L, F):
    """The engine with adaptive zeros at a point, and what a re-selection and a check of errors cost."""
    loss, marks = engine.loss(L, F), []

    def mark():
        torch.cuda.synchronize()
        marks.append(time.perf_counter())

    for _ in range(2):  # the first compiles
        marks.clear()
        mark()
        caps = caps_for(1e-4, dispersed=engine.problem.noise is not POISSON)
        chosen = choose(engine.survey_zeros(L, F, caps), 0.5e-4 * abs(loss))
        mark()
        stored, exposure = engine.collect_zeros(L, F, chosen.caps)
        mark()
        zeros = AdaptiveZeros(chosen.quadratics, stored, exposure, chosen.caps, chosen.error)
        renewed = TorchEngine(replace(engine.problem, zeros=zeros))
        for side in (renewed.problem.loadings_side, renewed.problem.factors_side):
            renewed._keep(side)
        mark()
        error = renewed.zero_errors(L, F)[1]
        mark()
    parts = ", ".join(
        f"{part} {seconds:.4f} s"
        for part, seconds in zip(("survey", "collect", "other side", "errors"), np.diff(marks), strict=True)
    )
    print(
        f"      stored zeros / non-zeros {stored.nnz / engine.problem.counts.nnz:.3f}, "
        f"error {error / abs(loss):.1e} of the log-likelihood; {parts}",
        flush=True,
    )
    return renewed


def show_iterations(names, rounds, forms):
    found = []
    for name in names:
        torch.cuda.empty_cache()
        case = CASES[name]
        counts, L, F = simulate(**case)
        nnz = counts.nnz
        for form in forms:
            if name == "1M" and form.endswith("exact"):
                continue
            engine = TorchEngine(problem_of(counts, 1.0, form))
            if form.endswith("adaptive"):
                engine = adaptive(engine, L, F)
            iterations(engine, L, F, 2)
            torch.cuda.reset_peak_memory_stats()
            times, losses = iterations(engine, L, F, rounds)
            again = iterations(engine, L, F, rounds)[1]
            peak = torch.cuda.max_memory_allocated() / 2**30
            assert losses == again  # the same bits
            found.append(
                {
                    "samples x features": "{:,} x {:,}".format(*counts.shape),
                    "non-zeros": f"{nnz:.1e}",
                    "form": form.replace("chebyshev", "approximate"),
                    "seconds": f"{np.median(times[1:-1]):.4f}",
                    "first": f"{times[1]:.4f}",
                    "peak memory": f"{peak:.1f} GiB",
                }
            )
        del counts, L, F, engine
    print(as_markdown(found))


def show_profile(name):
    """Where the time of an iteration goes, kernel by kernel."""
    counts, L, F = simulate(**CASES[name])
    for form in ("chebyshev", "exact", "nb exact"):
        engine = TorchEngine(problem_of(counts, 1.0, form))
        iterations(engine, L, F, 10)
        kinds = [torch.profiler.ProfilerActivity.CPU, torch.profiler.ProfilerActivity.CUDA]
        with torch.profiler.profile(activities=kinds) as profile:
            iterations(engine, L, F, 10)
        table = profile.key_averages().table(
            sort_by="cuda_time_total", row_limit=14, max_name_column_width=40
        )
        print(form, table, flush=True)


def timed(call, repeat=20):
    call()
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    times = []
    for _ in range(repeat):
        begin.record()
        call()
        end.record()
        torch.cuda.synchronize()
        times.append(begin.elapsed_time(end))
    return float(np.median(times))


def show_kernels(name):
    """Milliseconds of the parts of a half-step, with the bytes and operations they cannot do without."""
    counts, L, F = simulate(**CASES[name])
    for form, c, precision in (
        ("chebyshev", 1.0, "float32"),
        ("exact", 1.0, "float32"),
        ("nb exact", 1.0, "float32"),
        ("exact", 0.01, "float32"),
        ("exact", 1.0, "float64"),
    ):
        problem = problem_of(counts, c, form)
        engine, title = TorchEngine(problem, precision=precision), f"{name} {form} c={c} {precision}"
        print_parts(f"{title} loadings", engine, problem.loadings_side, L, F)
        print_parts(f"{title} factors", engine, problem.factors_side, F, L)


def print_parts(title, engine, side, start, design):
    from log1pnmf.engines.torch import kernels as triton_terms

    K, fixed = start.shape[1], engine._design(side, design)
    block = next(engine._rows(side).blocks())
    own, b = engine._keep(side).of(block), start[: block.n_rows].contiguous()
    rows, step = torch.arange(block.n_rows, device="cuda"), 0.01 * b
    none = torch.zeros(block.n_rows, dtype=torch.bool, device="cuda")

    def evaluate(hessian=True):
        return triton_terms.evaluate(block, rows, b, fixed, own=own, hessian=hessian)

    def reach():
        how = {"own": own, "known": none, "limits": (0.27, 0.6)}
        return triton_terms.reach(block, rows, b, step, fixed, **how)

    sums, box = evaluate(), engine._boxes(NON_NEGATIVE, b)
    H = sums.hessian + 1e-3 * sums.hessian.amax((1, 2))[:, None, None] * torch.eye(K, device="cuda")
    parts = {
        "evaluate": timed(evaluate),
        "evaluate, no Hessian": timed(lambda: evaluate(False)),
        "reach": timed(reach),
        "change": timed(lambda: triton_terms.change(block, rows, b, step, fixed, own=own)),
        "programs": timed(lambda: triton_terms.solve_box(H, sums.gradient, b, box)),
        "design": timed(lambda: engine._design(side, design)),
        "half-step": timed(lambda: engine.half_step(side, start, design), 5),
    }
    if fixed.form.exact:
        parts["all entries"] = timed(lambda: triton_terms.dense_sums(b, fixed, own=own, hessian=True))
        parts["all, change"] = timed(lambda: triton_terms.dense_change(b, step, fixed, own=own))
    entries = float(block.indptr[-1])
    flops = entries * (K * (K + 1) + 4 * K + 40)
    print(f"{title}: {entries:.3g} non-zeros, {block.n_rows} rows")
    for part, ms in parts.items():
        print(
            f"    {part:<22} {ms:8.3f} ms  {ms * 1e6 / entries:7.4f} ns/non-zero  "
            f"{8 * entries / ms / 1e9:6.2f} TB/s of counts  {4 * K * entries / ms / 1e9:6.2f} TB/s gathered  "
            f"{flops / ms / 1e9:6.2f} TFLOP/s needed",
            flush=True,
        )


DEFAULTS = {
    "Log1pNMF(10)": {},
    'Log1pNMF(10, noise="nb")': {"noise": "nb"},
    "Log1pNMF(10), the card too small": {},
    "Log1pNMF(10, c=inf)": {"c": np.inf},
    "Log1pNMF(10), eight batches": {"batch": 8},
}
"""The calls, those of a million samples first."""


def show_defaults(names):
    """The call users make, from SciPy to a fit, the first and the second: kernels are compiled once."""
    from log1pnmf import fit_log1p_nmf

    found = []
    for name in names:
        counts = simulate(**CASES[name])[0].to_scipy()
        torch.cuda.empty_cache()
        for title, given in list(DEFAULTS.items())[: 2 if name == "1M" else None]:
            settings, seconds = {**given}, []
            if "batch" in given:
                settings["batch"] = np.arange(counts.shape[0]) % given["batch"]
            torch.cuda.reset_peak_memory_stats()
            small = patch.object(rows, "fits", return_value=False) if "small" in title else nullcontext()
            for _ in range(1 if name == "1M" else 2):
                begin = time.perf_counter()
                with small:
                    fit = fit_log1p_nmf(counts, 10, engine="torch", random_state=0, **settings)
                seconds.append(f"{time.perf_counter() - begin:.1f}")
            found.append(
                {
                    "call": f"`{title}`",
                    "samples x features": "{:,} x {:,}".format(*counts.shape),
                    "non-zeros": f"{counts.nnz:.1e}",
                    "seconds": seconds[-1],
                    "with compilation": seconds[0] if len(seconds) > 1 else "",
                    "iterations": fit.n_iter,
                    "peak memory": f"{torch.cuda.max_memory_allocated() / 2**30:.1f} GiB",
                }
            )
    print(as_markdown(found))


def show_end(folder, threads):
    """From the same start to the native engine's converged log-likelihood."""
    from log1pnmf import fit_log1p_nmf

    for name, K in (("pbmc_facs", 6), ("kang", 13)):
        path = Path(folder) / f"{name}.npz"
        if not path.exists():
            continue
        Y = sparse.load_npz(path).tocsr()
        rng = np.random.default_rng(0)
        m = Y.shape[1]
        start = (rng.uniform(0.01, 1.0, (Y.shape[0], K)), rng.uniform(0.001, 0.3, (m, K)))
        for c, likelihood in (
            (1.0, "chebyshev"),
            (1.0, "adaptive"),
            (1.0, "exact"),
            (np.inf, "exact"),
        ):
            result = {}
            for engine in ("native", "torch", "torch"):
                begin = time.perf_counter()
                fit = fit_log1p_nmf(
                    Y, K, c=c, likelihood=likelihood, init=start, tol=1e-7, max_iter=300, engine=engine,
                    n_jobs=threads,
                )  # fmt: skip
                result[engine] = (time.perf_counter() - begin, fit.objective, fit.n_iter, fit.converged)
            (a, o1, n1, c1), (b, o2, n2, c2) = result["native"], result["torch"]
            print(
                f"{name} K={K} c={c:g} {likelihood}: native {threads} threads {a:.2f} s ({n1} it, {c1}), "
                f"torch {b:.2f} s ({n2} it, {c2}), {a / b:.1f}x; objective {o1:.6f} / {o2:.6f}, "
                f"relative difference {(o2 - o1) / abs(o1):.1e}",
                flush=True,
            )


def show_fits(names):
    """Whole fits from a start near the truth; the second of two, so that kernels are compiled."""
    from log1pnmf import fit_log1p_nmf

    for name in names:
        counts, L, F = simulate(**CASES[name])
        start = (L.cpu().numpy(), F.cpu().numpy())
        for likelihood in ("chebyshev", "adaptive", "exact"):
            for _ in range(2):
                begin = time.perf_counter()
                fit = fit_log1p_nmf(
                    counts, L.shape[1], c=1.0, likelihood=likelihood, init=start, max_iter=200, engine="torch"
                )
                seconds = time.perf_counter() - begin
            problem = Problem(counts, fit.size_factors, fit.link)
            exact = TorchEngine(problem).loss(fit.loadings, fit.factors / fit.link.alpha)
            renewals = int(np.isnan(fit.history["relative_change"]).sum()) - 1
            print(
                f"{name:>5} {likelihood:<12} {seconds:.2f} s, {fit.n_iter} iterations ({fit.stopped}), "
                f"{renewals} re-selections, iterations ended after {fit.history['seconds'][-1]:.2f} s; "
                f"exact log-likelihood {-exact:.6e}, certificate {fit.certificate}",
                flush=True,
            )


def show_process(name):
    """A new process from its start to a converged exact fit of counts in files.

    The first of three compiles kernels and byte code, which an installation keeps.
    """
    counts, L, F = simulate(**CASES[name])
    with tempfile.TemporaryDirectory() as folder:
        host = counts.on_host().by_row
        arrays = {"indptr": host.indptr, "indices": host.indices, "values": host.values}
        arrays |= {"L": L.cpu().numpy(), "F": F.cpu().numpy(), "shape": np.array(host.shape)}
        for key, array in arrays.items():
            np.save(f"{folder}/{key}.npy", array)
        del counts, L, F, host, arrays
        torch.cuda.empty_cache()
        kept = {**os.environ, "PYTHONPYCACHEPREFIX": f"{folder}/bytecode", "PYTHONDONTWRITEBYTECODE": ""}
        for _ in range(3):
            command = [sys.executable, "-m", "benchmarks.gpu_process", folder, str(time.time())]
            subprocess.run(command, check=True, env=kept)


def show_threshold(threads):
    """Seconds per iteration of both engines as the work grows, to place the threshold of "auto"."""
    for n in (100, 300, 1000, 3000, 10000):
        counts, L, F = simulate(n, 5000, 10, 0.05)
        host = Counts.from_any(counts.to_scipy())
        row = [f"nnz*K {counts.nnz * 10:.2g}"]
        for engine in (
            NativeEngine(problem_of(host, 1.0, "chebyshev"), threads),
            TorchEngine(problem_of(host, 1.0, "chebyshev")),
        ):
            arrays = [x.cpu().numpy() for x in (L, F)]
            iterations(engine, *arrays, 3)
            row.append(f"{np.median(iterations(engine, *arrays, 12)[0][2:]):.5f}")
        print(" ".join(row), flush=True)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--only", nargs="*", default=["defaults", "iterations", "kernels", "end", "threshold"]
    )
    parser.add_argument("--cases", nargs="*", default=list(CASES))
    parser.add_argument("--forms", nargs="*", default=list(FORMS))
    parser.add_argument("--rounds", type=int, default=25)
    parser.add_argument("--data", default="carry")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args()
    print(json.dumps({"device": torch.cuda.get_device_name(), "torch": torch.__version__}))
    shows = {
        "defaults": lambda: show_defaults(options.cases),
        "iterations": lambda: show_iterations(options.cases, options.rounds, options.forms),
        "fits": lambda: show_fits(options.cases),
        "threshold": lambda: show_threshold(options.threads),
        "end": lambda: show_end(options.data, options.threads),
    }
    of_cases = {"kernels": show_kernels, "profile": show_profile, "process": show_process}
    for what in options.only:
        if what in shows:
            shows[what]()
        for case in options.cases if what in of_cases else ():
            of_cases[what](case)


if __name__ == "__main__":
    main()
