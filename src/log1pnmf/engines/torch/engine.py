"""The half-step in PyTorch: with Triton kernels on a CUDA card; slow on the CPU, where it is for tests."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace
from functools import cached_property
from types import ModuleType
from typing import Any, Literal
from weakref import WeakKeyDictionary

import numpy as np
import torch

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.compress import Pattern
from log1pnmf.counts.counts import Counts
from log1pnmf.engines.base import Engine, HalfStep, PairSide, RowSolver
from log1pnmf.engines.native import NativeEngine
from log1pnmf.engines.torch import terms as torch_terms
from log1pnmf.engines.torch import zeros as torch_zeros
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds
from log1pnmf.model.dispersion import MeanSpectrum
from log1pnmf.model.link import LARGEST_ETA
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import Problem, Side
from log1pnmf.model.zeros import AdaptiveZeros, ZeroSurvey, surveyed_every

from .newton import Rows
from .rows import Block, DevicePattern, TensorCounts, device_rows, fits
from .terms import DENSE_BYTES, Box, Design, Form, Own
from .zeros import Exposure, Noise, Zeros

# ---------- what stays the same of one side of a problem, brought to a device once


class Kept:
    """Exposures, zeros, dispersions and batches of one side.

    Where all zeros are computed exactly, the sums of ``x`` and ``x x'`` are weighed by exposure.
    """

    def __init__(self, side: Side, device: Any, dtype: Any) -> None:
        def there(array: Any) -> Any:
            return torch.tensor(array, device=device)

        zeros, row, column = side.zeros, there(side.row_exposure), there(side.column_exposure)
        batch = None
        self.column_batch: Any = None
        self._order: Any = None
        if side.batches is not None:
            labels, effects = there(side.batches.labels), there(side.batches.effects)
            if side.rows_are_features:
                self.column_batch, row = labels, (row[:, None] * effects.T).contiguous()
                self._order = torch.argsort(labels, stable=True)
                self._ends = [0, *np.cumsum(np.bincount(side.batches.labels, minlength=len(effects)))]
            else:
                batch, column = labels.long(), column * effects
        self.row_exposure, self.column_exposure, self.narrow_exposure = row, column, column.to(dtype)
        self.stored, self.column_quadratic, quadratic = None, None, None
        if zeros is None:
            self._linear = self._square = column.reshape(-1, column.shape[-1])
            linear = square = row.reshape(len(row), -1)
        else:
            linear, square, self._linear, self._square = map(there, side.terms_of_zeros())
            if zeros.stored is not None and zeros.stored.nnz:
                self.stored = DevicePattern(zeros.stored, device)
            if zeros.row_quadratic is not None:
                quadratic = there(zeros.row_quadratic).to(dtype)
            else:
                self.column_quadratic = there(zeros.column_quadratic).to(dtype)
        self.column_dispersion, own = None, None
        if isinstance(side.noise, NegativeBinomial):
            n = side.rows.shape[0 if side.rows_are_features else 1]
            phi = there(np.broadcast_to(side.noise.dispersion, n).copy()).to(dtype)
            self.column_dispersion, own = (None, phi) if side.rows_are_features else (phi, None)
        self._own = Own(row.to(dtype), linear, square, quadratic, dispersion=own, batch=batch)
        self._of: WeakKeyDictionary[Block, Own] = WeakKeyDictionary()

    def of(self, block: Block) -> Own:
        """Return what the rows of a block have of their own; known for as long as the block lives."""
        own = self._of.get(block)
        if own is None:
            own = self._own.at(slice(block.first, block.first + block.n_rows))
            if self.stored is not None:
                own = replace(own, stored=self.stored.of(block))
            if self.stored is None or self.stored.resident:
                self._of[block] = own
        return own

    def batch_means(self, loadings: Any, factors: Any, *, identity: bool) -> Any:
        """Sum of the means of features in each batch, were its effects 1, batches x features; of columns."""
        sums = []
        for first, last in itertools.pairwise(self._ends):
            of = self._order[first:last]
            total, t = factors.new_zeros(len(factors)), self.column_exposure[of]
            if identity:
                total = factors @ (t @ loadings[of])
            else:
                for some, own in zip(*(one.split(self._piece(factors)) for one in (of, t)), strict=True):
                    eta = factors @ loadings[some].T
                    total += eta.clamp_(max=LARGEST_ETA).expm1_() @ own
            sums.append(total)
        return torch.stack(sums)

    @staticmethod
    def _piece(factors: Any) -> int:
        """Count samples whose means are evaluated at a time."""
        return max(1, DENSE_BYTES[factors.device.type] // (8 * max(1, len(factors))))

    def sums(self, X: Any) -> tuple[Any, Any, Any]:
        """`decline`, `linear` and `gram` of a `log1pnmf.engines.torch.terms.Design`."""
        exposure = self.column_exposure.reshape(-1, len(X))
        parts: list[tuple[Any, Any]] = [(X, slice(None))]
        if self._order is not None:  # one part for every batch, of neighbours
            X, cuts = X[self._order], itertools.pairwise(self._ends)
            parts = [(X[first:last], self._order[first:last]) for first, last in cuts]
        weights = exposure, self._linear, self._square
        found = [[], [], []]  # type: list[list[Any]]
        for x, at in parts:
            decline, linear, square = (one[:, at] for one in weights)
            found[0].append(decline @ x)
            found[1].append(linear @ x)
            found[2].extend((one[:, None] * x).T @ x for one in square)
        linear = [one[0] if len(one) == 1 else torch.cat(one) for one in found[:2]]
        return linear[0], linear[1], torch.stack(found[2])


# ---------- the half-step in PyTorch

Precision = Literal["float32", "float64"]

SMALLEST_ETA = {"float32": 1e-16, "float64": 1e-100}
LARGEST_PRECISE_ETA = {"float32": 80.0, "float64": 500.0}
LARGE_ETAS_BELOW = 0.1
"""The c below which etas are large."""
TRANSPOSED_BYTES = 48
"""Of every non-zero, while counts are transposed on a card."""


class TorchEngine(Engine):
    """Implementation of `log1pnmf.engines.base.Engine` in PyTorch.

    The arrays of the solver stay on the device in float64; counts and what is computed for every entry are in
    `precision`, and sums over entries (loss, gradient, Gram matrices) in float64. Every sum has a fixed
    order, so the same card gives the same bits.
    """

    sums_batches_quickly = False

    def __init__(
        self,
        problem: Problem,
        device: str | None = None,
        precision: Precision = "float32",
        *,
        stored: Precision | None = None,
    ) -> None:
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision, self._asked_stored = precision, stored
        self.problem = problem
        if self._uploads(problem.counts):
            self.problem = replace(problem, counts=TensorCounts.uploaded(problem.counts, self.device))
        self._dtype = getattr(torch, precision)
        self._stored = getattr(torch, stored or precision)
        self.rounds_loss = precision == "float32"
        self._kept: dict[Side, Kept] = {}
        self._tables: dict[tuple[Bounds, int], list[Any]] = {}
        self._form = Form(
            identity=problem.link.is_identity,
            exact=problem.zeros is None,
            smallest=SMALLEST_ETA[precision],
            largest=LARGEST_PRECISE_ETA[precision],
            dispersed=isinstance(problem.noise, NegativeBinomial),
            large=problem.link.c < LARGE_ETAS_BELOW,
        )

    def with_problem(self, problem: Problem) -> TorchEngine:
        """Return the same engine for another problem."""
        return type(self)(problem, str(self.device), self.precision, stored=self._asked_stored)

    def _uploads(self, counts: Counts) -> bool:
        """Whether to transpose counts of the host on a card."""
        if self.device.type != "cuda" or isinstance(counts, TensorCounts):
            return False
        # in double precision they would be there twice
        return self.precision == "float32" and fits(TRANSPOSED_BYTES * counts.nnz, self.device)

    def adopt(self, array: Any, which: PairSide = "loadings") -> Any:
        """Return a float64 tensor on the device; see `Engine.adopt`."""
        if isinstance(array, np.ndarray):
            array = torch.from_numpy(np.array(array, dtype=np.float64, order="C"))
        return array.to(device=self.device, dtype=torch.float64).contiguous()

    def half_step(
        self,
        side: Side,
        start: Any,
        design: Any,
        *,
        bounds: Bounds = NON_NEGATIVE,
        row_solver: RowSolver = "newton",
        with_loss: bool = True,
        with_batch_sums: bool = False,
    ) -> HalfStep:
        """Improve every row of `start`; see `Engine.half_step`."""
        fixed = self._design(side, design)
        b = self.adopt(start)
        boxes = self._boxes(bounds, b)
        kept, terms, parts = self._keep(side), self.terms_for(b.shape[1]), []
        for block in self._rows(side).blocks():
            at = slice(block.first, block.first + block.n_rows)
            rows = Rows(terms, block, fixed, kept.of(block), boxes.at(at))
            parts.append(rows.newton(b[at], with_loss=with_loss))
        values, gradient = (_joined([getattr(one, name) for one in parts]) for name in ("values", "gradient"))
        sizes, slopes = sum(one.columns for one in parts)
        return HalfStep(
            values=_as(start, values),
            loss=sum(one.loss for one in parts) + self.problem.plain_constant if with_loss else math.nan,
            gradient=_as(start, gradient),
            predicted_decrease=sum(one.decrease for one in parts),
            n_rejected=int(sum(one.n_rejected for one in parts)),
            residual=float(sizes @ slopes) / max(1, len(b)),
        )

    def evaluate(self, side: Side, start: Any, design: Any) -> tuple[float, Any]:
        """Loss and gradient at `start`; see `Engine.evaluate`."""
        fixed, b = self._design(side, design), self.adopt(start)
        boxes = self._boxes(NON_NEGATIVE, b)
        kept, terms = self._keep(side), self.terms_for(b.shape[1])
        loss, gradient = 0.0, torch.empty_like(b)
        for block in self._rows(side).blocks():
            at = slice(block.first, block.first + block.n_rows)
            rows = Rows(terms, block, fixed, kept.of(block), boxes.at(at))
            sums = rows.sums(rows.all, b[at], hessian=False)
            loss += float(sums.loss.sum())
            gradient[at] = sums.gradient
        return loss + self.problem.plain_constant, _as(start, gradient)

    def loss(self, loadings: Any, factors: Any) -> float:
        """Negative log-likelihood on the eta scale, constants included, penalty excluded; in float64."""
        precise = self
        if self.rounds_loss:  # the counts stay as they are: single precision holds them
            precise = TorchEngine(self.problem, str(self.device), "float64", stored=self.precision)
        return precise.evaluate(self.problem.loadings_side, loadings, factors)[0]

    def survey_zeros(
        self, loadings: Any, factors: Any, caps: np.ndarray, *, straight: bool = False
    ) -> ZeroSurvey:
        """Fit quadratics to the zeros; see `Engine.survey_zeros`."""
        return self._zeros(loadings, factors).survey(caps, straight=straight)

    def collect_zeros(self, loadings: Any, factors: Any, caps: np.ndarray) -> tuple[Pattern, np.ndarray]:
        """List zeros above their cap; see `Engine.collect_zeros`."""
        return self._zeros(loadings, factors).collect(caps)

    def zero_errors(self, loadings: Any, factors: Any, *, roughly: bool = False) -> tuple[float, float]:
        """Describe how far the quadratics are off; see `Engine.zero_errors`."""
        zeros = self.problem.zeros
        if not isinstance(zeros, AdaptiveZeros):
            return 0.0, 0.0
        stored = self._keep(self.problem.factors_side).stored
        every = surveyed_every(len(loadings)) if roughly else 1
        return self._zeros(loadings, factors).errors(zeros.quadratics, stored, every=every)

    def _zeros(self, loadings: Any, factors: Any) -> Zeros:
        side = self.problem.factors_side
        kept = self._keep(side)
        exposure = Exposure(kept.column_exposure, kept.column_batch, kept.row_exposure)
        features = torch_zeros if self._triton is None else self._triton
        at, noise = (self.adopt(loadings), self.adopt(factors)), None
        if isinstance(side.noise, NegativeBinomial):
            dispersion = self.adopt(np.broadcast_to(side.noise.dispersion, len(factors)))
            noise = Noise(dispersion, self.problem.link.is_identity)
        return Zeros(features, self._rows(side), exposure, *at, noise)

    def mean_spectrum(self, loadings: Any, factors: Any) -> MeanSpectrum | None:
        """Condense the means on the host; see `Engine.mean_spectrum`."""
        return self._native.mean_spectrum(on_host(loadings), on_host(factors))

    def batch_sums(self, loadings: Any, factors: Any) -> np.ndarray:
        """Sum means over batches, on the host where zeros have quadratics; see `Engine.batch_sums`."""
        if self.problem.zeros is not None:
            return self._native.batch_sums(on_host(loadings), on_host(factors))
        link, kept = self.problem.link, self._keep(self.problem.factors_side)
        sums = kept.batch_means(self.adopt(loadings), self.adopt(factors), identity=link.is_identity)
        return on_host(sums)

    @cached_property
    def _native(self) -> NativeEngine:
        """The same problem on the host."""
        return NativeEngine(replace(self.problem, counts=self.problem.counts.on_host()))

    @cached_property
    def terms(self) -> ModuleType:
        """What sums over non-zeros: Triton kernels on a card, plain PyTorch elsewhere and in float64."""
        return torch_terms if self.precision != "float32" or self._triton is None else self._triton

    @cached_property
    def _triton(self) -> ModuleType | None:
        """The Triton kernels, on a card with Triton."""
        if self.device.type != "cuda":
            return None
        try:
            from log1pnmf.engines.torch import kernels
        except ImportError:
            return None
        return kernels

    def terms_for(self, K: int) -> ModuleType:
        """Return `terms`, if it can do K factors."""
        too_many = getattr(self.terms, "LARGEST_WIDTH", K) < K
        return torch_terms if too_many else self.terms

    @cached_property
    def _lowest(self) -> Any:
        return torch.full((1,), self._form.smallest, dtype=self._dtype, device=self.device)

    def _boxes(self, bounds: Bounds, b: Any) -> Box:
        key = bounds, b.shape[1]
        if key not in self._tables:
            self._tables[key] = [self.adopt(one) for one in bounds.tables(b.shape[1])]
        return Box(*(one.expand(b.shape) for one in self._tables[key]))

    def _rows(self, side: Side) -> Any:
        return device_rows(side.rows, self.device, self._stored)

    def _keep(self, side: Side) -> Kept:
        """Bring everything but the counts to the device, once."""
        if side not in self._kept:
            self._kept[side] = Kept(side, self.device, self._dtype)
        return self._kept[side]

    def _design(self, side: Side, design: Any) -> Design:
        X, kept = self.adopt(design), self._keep(side)
        narrow = X.to(self._dtype)
        terms = self.terms_for(X.shape[1])
        width = terms.width(X.shape[1]) if terms is not torch_terms else X.shape[1]
        padded = narrow if width == X.shape[1] else torch.nn.functional.pad(narrow, (0, width - X.shape[1]))
        return Design(
            form=self._form,
            X=narrow,
            exposure=kept.narrow_exposure,
            padded=padded,
            wide=X,
            kept=kept,
            quadratic=kept.column_quadratic,
            dispersion=kept.column_dispersion,
            batch=kept.column_batch,
            lowest=self._lowest,
        )


def _joined(parts: list[Any]) -> Any:
    return parts[0] if len(parts) == 1 else torch.cat(parts)


def _as(start: Any, values: Any) -> Any:
    return on_host(values) if isinstance(start, np.ndarray) else values
