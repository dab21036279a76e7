"""`survey` and `errors` of `zeros` as Triton kernels: one program per feature, fixed order of every sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from triton.language.extra import libdevice

from log1pnmf.model.link import LARGEST_ETA

__all__ = ["errors", "survey"]

TILE = 1024


def survey(eta: Any, exposure: Any, caps: np.ndarray) -> tuple[Any, Any, Any]:
    """Survey some features; see `log1pnmf.engines.torch.zeros.survey`."""
    (m, n), n_caps = eta.shape, len(caps)
    error, n_above = eta.new_empty((2, m, n_caps))
    quadratics = eta.new_empty((m, n_caps, 3))
    em, there = eta.clamp(max=LARGEST_ETA).expm1_(), torch.tensor(caps, device=eta.device)
    t = exposure, 0 if exposure.ndim == 1 else n
    _survey[(m,)](eta, em, *t, there, error, n_above, quadratics, n, n_caps, SIZE=TILE, num_warps=8)
    return error, n_above, quadratics


def errors(eta: Any, exposure: Any, quadratics: Any) -> Any:
    """Sum up how far the quadratics are off; see `log1pnmf.engines.torch.zeros.errors`."""
    m, n = eta.shape
    sums = eta.new_empty((m, 2))
    t = exposure, 0 if exposure.ndim == 1 else n
    _errors[(m,)](eta, *t, quadratics, sums, n, LARGEST_ETA, SIZE=TILE, num_warps=8)
    return sums.sum(0)


@triton.jit
def _load(row_at, exposure_at, start, n, SIZE: tl.constexpr):
    """Eta and exposure of some samples; the exposure is 0 where there is no zero."""
    sample = start + tl.arange(0, SIZE)
    eta = tl.load(row_at + sample, mask=sample < n, other=-1.0)
    t = tl.load(exposure_at + sample, mask=sample < n, other=0.0)
    return eta, tl.where(eta >= 0.0, t, 0.0)


@triton.jit
def _em(em_at, start, n, SIZE: tl.constexpr):
    sample = start + tl.arange(0, SIZE)
    return tl.load(em_at + sample, mask=sample < n, other=0.0)


@triton.jit
def _mean_and_scale(row_at, exposure_at, cap, n, SIZE: tl.constexpr):
    s0 = tl.zeros([SIZE], dtype=tl.float64)
    s1, s2 = s0, s0
    for start in range(0, n, SIZE):
        eta, t = _load(row_at, exposure_at, start, n, SIZE)
        w = tl.where(eta <= cap, t, 0.0)
        s0 += w
        s1 += w * eta
        s2 += w * eta * eta
    total = tl.sum(s0, axis=0)
    some = tl.where(total > 0.0, total, 1.0)
    mean = tl.sum(s1, axis=0) / some
    variance = tl.maximum(tl.sum(s2, axis=0) / some - mean * mean, 0.0)
    return mean, tl.maximum(tl.sqrt(variance), 1e-7 * (1.0 + mean))


@triton.jit
def _solve(m0, m1, m2, m3, m4, r0, r1, r2):
    """Solve the normal equations of a quadratic, made solvable by a tiny ridge."""
    ridge = 1e-9 * m0 + 1e-300
    first, second, third = m0 * (1.0 + 1e-9) + ridge, m2 * (1.0 + 1e-9) + ridge, m4 * (1.0 + 1e-9) + ridge
    by1, by2 = m1 / first, m2 / first
    second -= by1 * m1
    third -= by2 * m2
    beside = m3 - by1 * m2
    r1 -= by1 * r0
    r2 -= by2 * r0
    by2 = beside / second
    x2 = (r2 - by2 * r1) / (third - by2 * beside)
    x1 = (r1 - beside * x2) / second
    return (r0 - m1 * x1 - m2 * x2) / first, x1, x2


@triton.jit
def _fit(row_at, em_at, exposure_at, cap, n, SIZE: tl.constexpr):
    """Least squares around the mean, as in `log1pnmf.model.zero_survey.survey_feature`; in powers of eta."""
    mean, scale = _mean_and_scale(row_at, exposure_at, cap, n, SIZE)
    level, slope, unit = libdevice.expm1(mean), libdevice.exp(mean), 1.0 / scale
    m0 = tl.zeros([SIZE], dtype=tl.float64)
    m1, m2, m3, m4, r0, r1, r2 = m0, m0, m0, m0, m0, m0, m0
    for start in range(0, n, SIZE):
        eta, t = _load(row_at, exposure_at, start, n, SIZE)
        w = tl.where(eta <= cap, t, 0.0)
        d = tl.where(w > 0.0, eta - mean, 0.0)
        rest = _em(em_at, start, n, SIZE) - (level + slope * d * (1.0 + 0.5 * d))
        x = d * unit
        m0 += w
        r0 += w * rest
        w *= x
        m1 += w
        r1 += w * rest
        w *= x
        m2 += w
        r2 += w * rest
        w *= x
        m3 += w
        m4 += w * x
    by0, by1, by2 = _solve(
        tl.sum(m0, axis=0),
        tl.sum(m1, axis=0),
        tl.sum(m2, axis=0),
        tl.sum(m3, axis=0),
        tl.sum(m4, axis=0),
        tl.sum(r0, axis=0),
        tl.sum(r1, axis=0),
        tl.sum(r2, axis=0),
    )
    linear = slope + by1 / scale
    square = tl.maximum(0.5 * slope + by2 / (scale * scale), 0.0)
    return level + by0 - mean * (linear - mean * square), linear - 2.0 * mean * square, square


@triton.jit
def _survey(
    eta_at,
    em_at,
    exposure_at,
    exposure_row,
    caps_at,
    error_at,
    above_at,
    quadratic_at,
    n,
    n_caps,
    SIZE: tl.constexpr,
):
    row = tl.program_id(0).to(tl.int64)
    row_at, em_at, exposure_at = eta_at + row * n, em_at + row * n, exposure_at + row * exposure_row
    tops = tl.zeros([SIZE], dtype=tl.float64)
    for start in range(0, n, SIZE):
        tops = tl.maximum(tops, _load(row_at, exposure_at, start, n, SIZE)[0])
    top = tl.max(tops, axis=0)
    a0, last = top - top, top - top - 1.0
    a1, a2, error, above = a0, a0, a0, a0
    for g in range(n_caps):
        cap = tl.load(caps_at + g)
        if top > last:  # otherwise no entry lies between the two caps
            a0, a1, a2 = _fit(row_at, em_at, exposure_at, cap, n, SIZE)
            errors = tl.zeros([SIZE], dtype=tl.float64)
            others = errors
            for start in range(0, n, SIZE):
                eta, t = _load(row_at, exposure_at, start, n, SIZE)
                off = _em(em_at, start, n, SIZE) - (a0 + eta * (a1 + a2 * eta))
                errors += tl.where(eta <= cap, t * tl.abs(off), 0.0)
                others += tl.where(eta > cap, 1.0, 0.0)
            error, above = tl.sum(errors, axis=0), tl.sum(others, axis=0)
        place = row * n_caps + g
        tl.store(error_at + place, error)
        tl.store(above_at + place, above)
        tl.store(quadratic_at + 3 * place, a0)
        tl.store(quadratic_at + 3 * place + 1, a1)
        tl.store(quadratic_at + 3 * place + 2, a2)
        last = cap


@triton.jit
def _errors(eta_at, exposure_at, exposure_row, quadratic_at, sums_at, n, most, SIZE: tl.constexpr):
    row = tl.program_id(0).to(tl.int64)
    a0, a1 = tl.load(quadratic_at + 3 * row), tl.load(quadratic_at + 3 * row + 1)
    a2 = tl.load(quadratic_at + 3 * row + 2)
    signed = tl.zeros([SIZE], dtype=tl.float64)
    absolute = signed
    for start in range(0, n, SIZE):
        eta, t = _load(eta_at + row * n, exposure_at + row * exposure_row, start, n, SIZE)
        off = t * (libdevice.expm1(tl.minimum(eta, most)) - (a0 + eta * (a1 + a2 * eta)))
        signed += off
        absolute += tl.abs(off)
    tl.store(sums_at + 2 * row, tl.sum(signed, axis=0))
    tl.store(sums_at + 2 * row + 1, tl.sum(absolute, axis=0))
