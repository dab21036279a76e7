"""The half-step in PyTorch: with Triton kernels on a CUDA card; slow on the CPU, where it is for tests."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from types import ModuleType
from typing import Any, Literal

import numpy as np
import torch

from log1pnmf._common.arrays import on_host
from log1pnmf.engines.base import HalfStep, InMemory, RowSolver
from log1pnmf.model.constraint import NON_NEGATIVE, Bounds
from log1pnmf.model.problem import Problem, Side
from log1pnmf.model.zeros import Quadratic

from . import terms as torch_terms
from .dense import dense_change, dense_sums
from .rows import Block, device_rows
from .terms import Design, Form, Sums

__all__ = ["Precision", "TorchEngine"]

Precision = Literal["float32", "float64"]

SMALLEST_ETA = {"float32": 1e-16, "float64": 1e-100}
LARGEST_ETA = {"float32": 80.0, "float64": 500.0}
SHORT_ROW, MOST_STEPS, FEW_ROWS = 64, 20, 0.01
MOST_HALVINGS = 30


class TorchEngine(InMemory):
    """Implementation of `log1pnmf.engines.base.Engine` in PyTorch.

    The arrays of the solver stay on the device in float64; counts and what is computed for every entry are in
    `precision`, and sums over entries (loss, gradient, Gram matrices) in float64. Every sum has a fixed
    order, so the same card gives the same bits.

    Parameters
    ----------
    device : str, optional
        "cuda" where there is one, otherwise "cpu".
    """

    def __init__(self, problem: Problem, device: str | None = None, precision: Precision = "float32") -> None:
        self.problem = problem
        self.device = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        self.precision = precision
        self._dtype = getattr(torch, precision)
        self._kept: dict[Side, tuple[Any, Any]] = {}
        zeros = problem.zeros
        self._form = Form(
            identity=problem.link.is_identity,
            exact=zeros is None,
            a1=zeros.a1 if isinstance(zeros, Quadratic) else 0.0,
            a2=zeros.a2 if isinstance(zeros, Quadratic) else 0.0,
            smallest=SMALLEST_ETA[precision],
            largest=LARGEST_ETA[precision],
        )

    def adopt(self, array: Any) -> Any:
        """Give a float64 tensor on the device; see `log1pnmf.engines.base.Engine.adopt`."""
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
    ) -> HalfStep:
        """Improve every row of `start`; see `log1pnmf.engines.base.Engine.half_step`."""
        fixed = self._design(side, design)
        b = self.adopt(start)
        p = self.adopt(bounds.column_penalty(b.shape[1]))
        values, gradient = torch.empty_like(b), torch.empty_like(b)
        loss, decrease, rejected = torch.empty((3, len(b)), dtype=torch.float64, device=self.device)
        exposure = self._exposures(side)[0]
        for block in self._rows(side).blocks():
            at = slice(block.first, block.first + block.n_rows)
            rows = _Rows(self, block, fixed, exposure[at], p, bounds.box_upper)
            values[at], loss[at], gradient[at], decrease[at], rejected[at] = rows.newton(b[at])
        # the only synchronisation with the card
        totals = torch.stack([loss.sum(), decrease.sum(), rejected.sum()]).tolist()
        return HalfStep(
            values=_as(start, values),
            loss=totals[0] + self.problem.plain_constant,
            gradient=_as(start, gradient),
            predicted_decrease=totals[1],
            n_rejected=int(totals[2]),
        )

    def evaluate(self, side: Side, start: Any, design: Any) -> tuple[float, Any]:
        """Loss and gradient at `start`; see `log1pnmf.engines.base.Engine.evaluate`."""
        fixed, b = self._design(side, design), self.adopt(start)
        none = torch.zeros(b.shape[1], dtype=torch.float64, device=self.device)
        exposure, loss, gradient = self._exposures(side)[0], 0.0, torch.empty_like(b)
        for block in self._rows(side).blocks():
            at = slice(block.first, block.first + block.n_rows)
            rows = _Rows(self, block, fixed, exposure[at], none, np.inf)
            sums = rows.sums(rows.all, b[at], hessian=False)
            loss += float(sums.loss.sum())
            gradient[at] = sums.gradient
        return loss + self.problem.plain_constant, _as(start, gradient)

    def loss(self, loadings: Any, factors: Any) -> float:
        """Negative log-likelihood on the eta scale, constants included, penalty excluded."""
        return self.evaluate(self.problem.loadings_side, loadings, factors)[0]

    def zero_errors(self, loadings: Any, factors: Any) -> tuple[float, float]:
        """Say how far the quadratics are off; see `log1pnmf.engines.base.Engine.zero_errors`."""
        return 0.0, 0.0

    @cached_property
    def terms(self) -> ModuleType:
        """What sums over non-zeros: Triton kernels on a card, plain PyTorch elsewhere and in float64."""
        if self.device.type != "cuda" or self.precision != "float32":
            return torch_terms
        try:
            from . import triton_terms
        except ImportError:
            return torch_terms
        return triton_terms

    def terms_for(self, K: int) -> ModuleType:
        """Give `terms`, if it can do K factors."""
        too_many = getattr(self.terms, "LARGEST_WIDTH", K) < K
        return torch_terms if too_many else self.terms

    def _rows(self, side: Side) -> Any:
        return device_rows(side.rows, self.device, self._dtype)

    def _exposures(self, side: Side) -> tuple[Any, Any]:
        """Of rows (in `precision`) and of columns (in float64), on the device."""
        if side not in self._kept:
            row, column = (
                torch.as_tensor(one, device=self.device) for one in (side.row_exposure, side.column_exposure)
            )
            self._kept[side] = row.to(self._dtype), column
        return self._kept[side]

    def _design(self, side: Side, design: Any) -> Design:
        X, t = self.adopt(design), self._exposures(side)[1]
        weighted = t[:, None] * X
        narrow = X.to(self._dtype)
        terms = self.terms_for(X.shape[1])
        width = terms.width(X.shape[1]) if terms is not torch_terms else X.shape[1]
        padded = torch.nn.functional.pad(narrow, (0, width - X.shape[1])).contiguous()
        return Design(
            form=self._form,
            X=narrow,
            exposure=t.to(self._dtype),
            padded=padded,
            linear=weighted.sum(0),
            gram=weighted.T @ X,
            largest=X.amax(0),
        )


def _as(start: Any, values: Any) -> Any:
    return on_host(values) if isinstance(start, np.ndarray) else values


@dataclass(frozen=True, eq=False)
class _Rows:
    """The convex problems of the rows of one block, solved side by side.

    The rules are those of the native engine (``cpp/newton.hpp``): a full Newton step where the curvature
    surely holds along it; otherwise a leap for counts that are far too small, then a line search, and another
    step for such rows (unless they are few and long: those would keep the card waiting). What differs is the
    order: each rule is applied to all rows that need it at once.
    """

    engine: TorchEngine
    block: Block
    design: Design
    exposure: Any
    penalty: Any
    upper: float

    @cached_property
    def all(self) -> Any:
        """Numbers of all rows."""
        return torch.arange(self.block.n_rows, device=self.exposure.device)

    def newton(self, b: Any) -> tuple[Any, Any, Any, Any, Any]:
        """Improved rows, and loss, gradient, decrease and whether the full step was refused."""
        block, solve = self.block, self.engine.terms_for(b.shape[1]).solve_box
        sums = self.sums(self.all, b, hessian=True)
        values, rejected = b.clone(), torch.zeros(len(b), dtype=torch.bool, device=b.device)
        decrease = torch.zeros_like(sums.loss)
        loss, gradient, active, point = sums.loss, sums.gradient, self.all, b
        if block.has_empty:  # without counts the optimum is zero whatever the design
            empty = block.lengths == 0
            values[empty] = 0.0
            decrease[empty] = (loss + b @ self.penalty)[empty]
            active = torch.nonzero(~empty)[:, 0]
            point = b[active]
            sums = Sums(loss[active], gradient[active], sums.hessian[active])
        for step in range(MOST_STEPS):
            if not len(active):
                break
            slope = sums.gradient + self.penalty
            x, predicted, curvature = solve(sums.hessian, slope, point, self.upper)
            values[active], decrease[active] = x, decrease[active] + predicted
            doubtful = torch.nonzero(~self._surely_small(active, x - point, curvature))[:, 0]
            rows, at, to = active[doubtful], point[doubtful], x[doubtful]
            holds, fall = self._holds(rows, at, to - at)
            left = torch.nonzero(~holds)[:, 0]
            if not len(left):
                break
            doubtful, rows = doubtful[left], rows[left]
            search = _Search(self, rows, at[left], predicted[doubtful], slope[doubtful])
            search.run(to[left], fall[left])
            values[rows] = search.best
            decrease[rows] += search.gain - predicted[doubtful]
            rejected[rows] |= search.shortened
            more = block.lengths[rows] <= SHORT_ROW
            if step == 0 and len(rows) >= FEW_ROWS * len(b):
                more |= True
            again = torch.nonzero(more & (search.gain > 0.0))[:, 0]
            active, point = rows[again], search.best[again]
            if len(active):
                sums = self.sums(active, point, hessian=True)
        return values, loss, gradient, decrease, rejected

    def sums(self, rows: Any, b: Any, *, hessian: bool) -> Sums:
        """Loss, gradient and Hessian of some rows, penalty excluded."""
        design, t = self.design, self.exposure[rows]
        form = design.form
        terms = self.engine.terms_for(b.shape[1])
        loss, gradient, H = terms.evaluate(self.block, rows, b, design, exposure=t, hessian=hessian)
        if form.exact:
            whole = dense_sums(terms, b, design, exposure=t, hessian=hessian)
            return Sums(loss + whole.loss, gradient + whole.gradient, H + whole.hessian if hessian else None)
        wide, bend = t.double()[:, None], b @ design.gram
        loss = loss + (wide * b * (form.a1 * design.linear + form.a2 * bend)).sum(1)
        gradient = gradient + wide * (form.a1 * design.linear + 2.0 * form.a2 * bend)
        if hessian and form.a2 != 0.0:
            H = H + (2.0 * form.a2 * t)[:, None, None] * design.gram.to(H.dtype)
        return Sums(loss, gradient, H)

    def change(self, rows: Any, b: Any, step: Any) -> Any:
        """Change of the penalised loss of some rows."""
        terms, t = self.engine.terms_for(b.shape[1]), self.exposure[rows]
        part = terms.change(self.block, rows, b, step, self.design, exposure=t)
        loss = part.loss + step @ self.penalty
        if self.design.form.exact:
            return loss + dense_change(terms, b, step, self.design, exposure=t)[0]
        return loss + self._quadratic_change(rows, b, step)

    def _quadratic_change(self, rows: Any, b: Any, step: Any) -> Any:
        design, form = self.design, self.design.form
        bend = (2.0 * b + step) @ design.gram
        return self.exposure[rows].double() * (step * (form.a1 * design.linear + form.a2 * bend)).sum(1)

    def _surely_small(self, rows: Any, step: Any, curvature: Any) -> Any:
        """Whether every eta changes so little that the full step must lower the loss; a cheap bound."""
        small = curvature <= 0.04 * self.block.smallest[rows]
        if not self.design.form.identity:
            small &= abs(step) @ self.design.largest <= 0.2
        return small

    def _holds(self, rows: Any, b: Any, step: Any) -> tuple[Any, Any]:
        """Whether the Hessian along the step stays below twice its start, and how the loss changes.

        The change is only known, and only needed, where it does not hold.
        """
        form = self.design.form
        fall = torch.zeros(len(rows), dtype=torch.float64, device=b.device)
        if not len(rows):
            return fall == 0.0, fall
        terms = self.engine.terms_for(b.shape[1])
        part = terms.change(self.block, rows, b, step, self.design, exposure=self.exposure[rows])
        holds = part.shrink <= 0.27
        if form.exact:
            holds &= step.clamp(min=0.0) @ self.design.largest <= 0.6
            left = torch.nonzero(~holds)[:, 0]
            if len(left):
                t = self.exposure[rows[left]]
                whole, growth = dense_change(terms, b[left], step[left], self.design, exposure=t)
                fall[left] = part.loss[left] + whole
                holds[left] = (part.shrink[left] <= 0.27) & (growth <= 0.6)
        else:
            if not form.identity:
                holds &= part.growth <= 0.6
            fall = part.loss + self._quadratic_change(rows, b, step)
        return holds, fall + step @ self.penalty


class _Search:
    """Line search for rows whose full step is not sure to lower the loss: a leap, then shorter steps."""

    def __init__(self, rows: _Rows, chosen: Any, at: Any, predicted: Any, slope: Any) -> None:
        self._rows, self._chosen, self._at = rows, chosen, at
        self._predicted, self._slope = predicted, slope
        self.best, self.gain = at.clone(), torch.zeros_like(predicted)
        self.shortened = torch.zeros_like(predicted, dtype=torch.bool)

    def run(self, to: Any, fall: Any) -> None:
        """Find `best` and `gain`, from the full step's end `to` and its change of loss `fall`."""
        leap, far = self._leap(to)
        leaping = torch.nonzero(far)[:, 0]
        if len(leaping):
            self._take(leaping, leap[leaping], self._fall(leaping, leap[leaping]), 1.0)
        left = torch.nonzero(self.gain <= 0.0)[:, 0]
        self._take(left, to[left], fall[left], 1.0)
        fraction = 1.0
        for _ in range(MOST_HALVINGS):
            left = torch.nonzero(self.gain <= 0.0)[:, 0]
            if not len(left):
                return
            self.shortened[left] = True
            fraction *= 0.5
            point = self._at[left] + fraction * (to[left] - self._at[left])
            self._take(left, point, self._fall(left, point), fraction)

    def _fall(self, which: Any, point: Any) -> Any:
        at = self._at[which]
        return self._rows.change(self._chosen[which], at, point - at)

    def _take(self, which: Any, point: Any, fall: Any, fraction: float) -> None:
        enough = (fall <= -0.01 * fraction * self._predicted[which]) & (fall < 0.0)
        taken = which[enough]
        self.best[taken], self.gain[taken] = point[enough], -fall[enough]

    def _leap(self, to: Any) -> tuple[Any, Any]:
        """Put the additive model's fixed point where an eta is far too small under a count."""
        rows = self._rows
        exposure = rows.exposure[self._chosen].double()
        down = exposure[:, None] * rows.design.linear + rows.penalty
        up = down - self._slope
        far = (down > 0.0) & (up > 4.0 * down)
        safe = torch.where(down > 0.0, down, 1.0)
        least = rows.block.smallest[self._chosen][:, None]
        lifted = torch.where(self._at > 0.0, self._at * (up / safe), 0.1 * least / safe)
        return torch.where(far, lifted.clamp(max=rows.upper), to), far.any(1)
