"""Triton kernels, interpreted on the CPU, beside plain PyTorch; test_torch_engine.py runs this by itself."""

import dataclasses
import os
import types

os.environ["TRITON_INTERPRET"] = "1"

import numpy as np
import torch
import triton
import triton.language as tl
from test_torch_engine import example, sides

from log1pnmf.engines.torch import kernels
from log1pnmf.engines.torch import rows as torch_rows
from log1pnmf.engines.torch import terms as torch_terms
from log1pnmf.engines.torch import zeros as torch_zeros
from log1pnmf.engines.torch.engine import TorchEngine
from log1pnmf.model.batches import Batches
from log1pnmf.model.zeros import caps_for


@triton.jit
def expm1(x):
    return tl.where(tl.abs(x) < 1e-3, x + 0.5 * x * x, tl.exp(x) - 1.0)


@triton.jit
def exp(x):
    return tl.exp(x)


@triton.jit
def log(x):
    return tl.log(x)


# The device's own library is not interpreted.
kernels.libdevice = types.SimpleNamespace(expm1=expm1, exp=exp, log=log)
kernels.ROWS, kernels.COLUMNS, kernels.FEWEST_COLUMNS = 16, 16, 16
kernels.TILE = 16
torch_rows.PIECE = kernels.PIECE = 4


def alike(call, plain, wide, close=1e-4):
    """The same call of both modules gives the same."""
    for one, other in zip(call(torch_terms, plain), call(kernels, wide), strict=True):
        if one is None:
            assert other is None
            continue
        torch.testing.assert_close(
            other, one, rtol=close, atol=1e-4 * float(one.abs().max()), check_dtype=False
        )


def compare(problem, side, start, design, *, share, boxes):
    """Programs for one side, with steps of this share of the start; `boxes`: also what no model changes."""
    engine = TorchEngine(problem, "cpu")
    plain = engine._design(side, design)
    extra = kernels.width(3) - 3
    padded = torch.nn.functional.pad(plain.X, (0, extra)).contiguous()
    wide = dataclasses.replace(plain, padded=padded)
    wide.__dict__["rough"] = padded  # with all digits, to compare
    block = next(engine._rows(side).blocks())
    own = engine._keep(side).of(block)
    rows, b = block.numbers, torch.tensor(start)
    alike(lambda terms, d: terms.evaluate(block, rows, b, d, own=own, hessian=True), plain, wide)
    alike(
        lambda terms, d: terms.evaluate(block, rows, b, d, own=own, hessian=True, with_loss=False)[1:],
        plain,
        wide,
    )
    some = rows % 2 == 0
    how = {"own": own, "known": some}
    step = share * b
    alike(lambda terms, d: [terms.change(block, rows, b, step, d, own=own)], plain, wide, 1e-3)
    alike(
        lambda terms, d: [
            one[~some] for one in terms.reach(block, rows, b, step, d, limits=(-1.0, -1.0), **how)
        ],
        plain,
        wide,
    )
    within = kernels.reach(block, rows, b, step, wide, limits=(1e9, 1e9), **how)
    assert torch.isinf(within.rise).all()
    if problem.zeros is None:
        alike(lambda terms, d: terms.dense_change(b, step, d, own=own), plain, wide, 1e-3)
        alike(lambda terms, d: terms.dense_sums(b, d, own=own, hessian=True), plain, wide)
    if not boxes:
        return
    sums = torch_terms.evaluate(block, rows, b, plain, own=own, hessian=True)
    definite = sums.hessian + sums.hessian.abs().amax((1, 2))[:, None, None] * torch.eye(3)
    H = torch.nn.functional.pad(definite, (0, extra, 0, extra)).contiguous()[:, :3, :3]
    none = torch.zeros_like(b)
    known = torch.where(torch.arange(3) == 1, b, none)
    for lower, upper in (
        (none, none + np.inf),
        (none, none + b.max()),
        (known, torch.where(known > 0, b, np.inf)),
    ):
        box = torch_terms.Box(lower, upper, none)
        alike(lambda terms, _: terms.solve_box(H, sums.gradient, b, box), plain, wide, 1e-3)  # noqa: B023


def compare_zeros():
    """Of features with many kinds of eta, and of one without any zero."""
    eta = torch.linspace(0.0, 1.7, 7)[:, None].double() ** 2 * torch.linspace(0.3, 1.0, 50).double()
    eta[:, ::7], eta[5] = -1.0, -1.0
    t, quadratics = torch.linspace(0.5, 2.0, 50).double(), torch.linspace(0.1, 1.0, 21).double().view(7, 3)
    for one, other in (
        *zip(*(zeros.survey(eta, t, caps_for(1e-4)) for zeros in (torch_zeros, kernels)), strict=True),
        [zeros.errors(eta, t, quadratics) for zeros in (torch_zeros, kernels)],
    ):
        torch.testing.assert_close(other, one, rtol=1e-5, atol=1e-9)


if __name__ == "__main__":
    for c, kind in ((1.0, "chebyshev"), (0.3, "nb")):
        problem, loadings, factors = example(c, kind, 3, n=4, m=17)
        effects = np.exp(0.3 * np.sin(np.arange(34.0))).reshape(2, 17)
        batched = dataclasses.replace(problem, batches=Batches(np.arange(4) % 2, effects))
        for one in (problem, batched) if kind == "nb" else (problem,):
            shares = (-0.2, 0.2) if one is problem else (0.2, -0.2)
            for (side, start, design), share in zip(sides(one, loadings, factors), shares, strict=True):
                compare(one, side, start, design, share=share, boxes=kind == "chebyshev")
    compare_zeros()
    print("alike")  # noqa: T201
