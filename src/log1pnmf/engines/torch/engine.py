"""The half-step on a CUDA card. Tests without one run its Triton kernels in Triton's interpreter."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any, Literal

import numpy as np
import torch

from log1pnmf._common.arrays import on_host
from log1pnmf.counts.compress import Pattern
from log1pnmf.engines.base import Engine, HalfStep, PairSide
from log1pnmf.model.dispersion import MeanSpectrum
from log1pnmf.model.noise import NegativeBinomial
from log1pnmf.model.problem import NON_NEGATIVE, Bounds, Problem, Side
from log1pnmf.model.zeros import AdaptiveZeros, ZeroSurvey, surveyed_every

from .kernels import width
from .newton import Rows
from .rows import SMALLEST_ETA, Box, Design, DeviceRows, Form, Kept, UploadedCounts, joined, uploaded
from .zeros import Noise, Zeros

Precision = Literal["float32", "float64"]

LARGEST_PRECISE_ETA = {"float32": 80.0, "float64": 500.0}
LARGE_ETAS_BELOW = 0.1  # the c below which etas are large


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
        shared: dict[Any, Any] | None = None,
    ) -> None:
        if isinstance(problem.zeros, AdaptiveZeros) and problem.zeros.a4 is not None:
            raise ValueError("engine='torch' has no quartics for zeros; use engine='native'")
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision, self._asked_stored = precision, stored
        self._dtype = getattr(torch, precision)
        self._stored = getattr(torch, stored or precision)
        # counts on the device, by those of the host: of all engines that came of one by `with_problem`
        self._shared: dict[Any, Any] = {} if shared is None else shared
        counts = problem.counts
        if counts not in self._shared:
            self._shared[counts] = uploaded(counts, self.device, self._stored)
        counts = self._shared[counts]
        self.problem = problem if counts is problem.counts else replace(problem, counts=counts)
        self.rounds_loss = precision == "float32"
        self._kept: dict[Side, Kept] = {}
        self._tables: dict[tuple[Bounds, int], list[Any]] = {}
        self._form = Form(
            identity=problem.link.is_identity,
            exact=problem.zeros is None,
            smallest=SMALLEST_ETA[self._dtype],
            largest=LARGEST_PRECISE_ETA[precision],
            dispersed=isinstance(problem.noise, NegativeBinomial),
            large=problem.link.c < LARGE_ETAS_BELOW or precision == "float64",
        )

    def with_problem(self, problem: Problem) -> TorchEngine:
        """Return the same engine for another problem."""
        return self._other(problem, self.precision, self._asked_stored)

    def _other(self, problem: Problem, precision: Precision, stored: Precision | None) -> TorchEngine:
        return TorchEngine(problem, str(self.device), precision, stored=stored, shared=self._shared)

    @property
    def note(self) -> str | None:  # type: ignore[override]
        """Where the counts are, if that is not on the card."""
        rows = self.problem.counts.by_row
        if self._rows(self.problem.loadings_side).resident:
            return None
        size = 2 * rows.nnz * (4 + self._stored.itemsize) / 1e9
        return (
            f"the counts ({size:,.1f} GB by row and by column) are larger than what is free on the graphics "
            "card: every half-step reads them from the host's memory in blocks"
        )

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
        with_loss: bool = True,
        **others: Any,
    ) -> HalfStep:
        """Improve every row of `start`; see `Engine.half_step`."""
        fixed = self._design(side, design)
        b = self.adopt(start)
        boxes = self._boxes(bounds, b)
        kept, parts = self._keep(side), []
        for block in self._rows(side).blocks():
            at = slice(block.first, block.first + block.n_rows)
            rows = Rows(block, fixed, kept.of(block), boxes.at(at))
            parts.append(rows.newton(b[at], with_loss=with_loss))
        values, gradient = (joined([getattr(one, name) for one in parts]) for name in ("values", "gradient"))
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
        kept, loss, gradient = self._keep(side), 0.0, torch.empty_like(b)
        for block in self._rows(side).blocks():
            at = slice(block.first, block.first + block.n_rows)
            rows = Rows(block, fixed, kept.of(block), boxes.at(at))
            sums = rows.sums(rows.all, b[at], hessian=False)
            loss += float(sums.loss.sum())
            gradient[at] = sums.gradient
        return loss + self.problem.plain_constant, _as(start, gradient)

    def loss(self, loadings: Any, factors: Any) -> float:
        """Negative log-likelihood on the eta scale, constants included, penalty excluded; in float64."""
        precise = self
        if self.rounds_loss:  # the counts stay as they are: single precision holds them
            precise = self._other(self.problem, "float64", self.precision)
        return precise.evaluate(self.problem.loadings_side, loadings, factors)[0]

    def survey_zeros(
        self, loadings: Any, factors: Any, caps: np.ndarray, *, straight: bool = False, quartic: bool = False
    ) -> ZeroSurvey:
        """Fit quadratics to the zeros; see `Engine.survey_zeros`."""
        return self._zeros(loadings, factors).survey(caps, straight=straight)

    def collect_zeros(self, loadings: Any, factors: Any, caps: np.ndarray) -> tuple[Pattern, np.ndarray]:
        """List zeros above their cap; see `Engine.collect_zeros`."""
        return self._zeros(loadings, factors).collect(caps)

    def _zero_errors(
        self, zeros: AdaptiveZeros, loadings: Any, factors: Any, roughly: bool
    ) -> tuple[float, float]:
        stored = self._keep(self.problem.factors_side).stored
        every = surveyed_every(len(loadings)) if roughly else 1
        return self._zeros(loadings, factors).errors(zeros.quadratics, stored, every=every)

    def _zeros(self, loadings: Any, factors: Any) -> Zeros:
        side = self.problem.factors_side
        dispersion = None
        if isinstance(side.noise, NegativeBinomial):
            dispersion = self.adopt(np.broadcast_to(side.noise.dispersion, len(factors)))
        noise = Noise(dispersion, self.problem.link.is_identity)
        return Zeros(self._rows(side), self._keep(side), self.adopt(loadings), self.adopt(factors), noise)

    def mean_spectrum(self, loadings: Any, factors: Any) -> MeanSpectrum:
        """Condense the means; see `Engine.mean_spectrum`."""
        return self._zeros(loadings, factors).spectrum(MeanSpectrum.low_for(self.problem.counts.tally))

    def batch_sums(self, loadings: Any, factors: Any) -> np.ndarray:
        """Sum means over batches; see `Engine.batch_sums`."""
        if self.problem.link.is_identity:
            return super().batch_sums(on_host(loadings), on_host(factors))
        zeros, stored, quadratics = self.problem.zeros, self._keep(self.problem.factors_side).stored, None
        if zeros is not None:
            parts = (zeros.constant, zeros.a1, zeros.a2)
            quadratics = np.stack([np.broadcast_to(one, len(factors)) for one in parts], axis=1)
        return self._zeros(loadings, factors).batch_sums(quadratics, stored)

    def dispersed_sums(self, effects: np.ndarray, loadings: Any, factors: Any) -> np.ndarray:
        """Sum what effects of batches need over batches; see `Engine.dispersed_sums`."""
        return self._zeros(loadings, factors).dispersed_sums(effects)

    def _boxes(self, bounds: Bounds, b: Any) -> Box:
        key = bounds, b.shape[1]
        if key not in self._tables:
            self._tables[key] = [self.adopt(one) for one in bounds.tables(b.shape[1])]
        return Box(*(one.expand(b.shape) for one in self._tables[key]))

    def _rows(self, side: Side) -> Any:
        rows, counts = side.rows, self.problem.counts
        if isinstance(rows, DeviceRows):
            return rows
        if isinstance(counts, UploadedCounts) and rows is counts.by_row:
            return counts.there
        if rows not in self._shared:
            self._shared[rows] = DeviceRows.of(rows, self.device, self._stored)
        return self._shared[rows]

    def _keep(self, side: Side) -> Kept:
        """Bring everything but the counts to the device, once."""
        if side not in self._kept:
            self._kept[side] = Kept(side, self.device, self._dtype)
        return self._kept[side]

    def _design(self, side: Side, design: Any) -> Design:
        X = self.adopt(design)
        narrow, more = X.to(self._dtype), width(X.shape[1]) - X.shape[1]
        padded = torch.nn.functional.pad(narrow, (0, more)) if more else narrow
        return Design(self._form, self._keep(side), narrow, padded, X)


def _as(start: Any, values: Any) -> Any:
    return on_host(values) if isinstance(start, np.ndarray) else values
