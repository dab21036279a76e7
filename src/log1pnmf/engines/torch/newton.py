"""Newton steps of the rows of a block, all side by side."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch

from log1pnmf.model.zeros import MOST_BEND

from . import kernels
from .kernels import IMPOSSIBLE
from .rows import Block, Box, Design, Own, Sums, declines, gram_products, linears, with_grams

SHORT_ROW, MOST_STEPS, FEW_ROWS = 64, 20, 0.01
MOST_HALVINGS = 30
MOST_RISE = 0.9
"""Of the curvature along a step, as a part of it; up to its double the full step lowers the loss."""
LEAST_LEFT = {torch.float32: 1e-6, torch.float64: 1e-12}
"""Part of the sums of all entries; less may be the rounding of those that are exact."""
MOST_CURVATURE = 1e10  # of all entries; with more of it sums are unreliable, and a point is refused


class Solved(NamedTuple):
    """Improved rows, the gradient where they were, and sums over rows.

    columns: column sums of the rows, and those of their projected gradients, as in
    `log1pnmf.model.problem.Bounds.residual`; on the host, shape (2, K). loss: where they were. decrease:
    predicted. n_rejected: rows whose full step was refused.
    """

    values: Any
    gradient: Any
    columns: Any
    loss: float
    decrease: float
    n_rejected: float


@dataclass(frozen=True, eq=False)
class Rows:
    """The convex problems of the rows of one block, solved side by side.

    The rules are those of the native engine (``cpp/newton.hpp``): a full Newton step where the curvature
    surely holds along it; otherwise a leap for counts that are far too small, then a line search, and another
    step for such rows (unless they are few and long: those would keep the card waiting). What differs is the
    order: each rule is applied to all rows that need it at once. And where one entry changes much, all
    entries of the row together may show that the curvature holds, which spares most rows the line search.
    """

    block: Block
    design: Design
    own: Own
    box: Box

    @property
    def all(self) -> Any:
        """Numbers of all rows."""
        return self.block.numbers

    def _of(self, own: Any, rows: Any) -> Any:
        """Take what belongs to some rows; all of it for `all`."""
        return own if rows is self.all else own.at(rows)

    def newton(self, b: Any, *, with_loss: bool) -> Solved:
        """Improve all rows; the loss is only right if it is wanted."""
        block = self.block
        sums = self.sums(self.all, b, hessian=True, with_loss=with_loss or block.has_empty)
        rejected = torch.zeros(len(b), dtype=torch.bool, device=b.device)
        loss, gradient, active, point = sums.loss, sums.gradient, self.all, b
        columns = torch.stack([b.sum(0), self._projected(b, gradient).sum(0)])
        if block.has_empty:  # without counts the optimum is the lower bound, whatever the design
            empty = block.lengths == 0
            values, decrease = b.clone(), torch.zeros_like(loss)
            least, none = self.box.lower, torch.nonzero(empty)[:, 0]
            values[empty] = least[empty]
            before, after = ((one.penalty * at).sum(1) for one, at in ((self.box, b), (self.box, least)))
            decrease[empty] = (loss + before - after)[empty] - self.sums(
                none, least[none], hessian=False
            ).loss
            active = torch.nonzero(~empty)[:, 0]
            point = b[active]
            sums = Sums(*(None if one is None else one[active] for one in sums))
        for step in range(MOST_STEPS):
            if not len(active):
                break
            box = self._of(self.box, active)
            slope = sums.gradient + box.penalty
            x, predicted, curvature = kernels.solve_box(sums.hessian, slope, point, box)
            if active is self.all:
                values, decrease = x, predicted
            else:
                values[active], decrease[active] = x, decrease[active] + predicted
            holds = self._holds(active, point, x - point, curvature)
            if self.design.form.concave:
                holds &= self._stays_inside(active, x - point, sums.concave)
            *totals, n_left = _totals(columns, loss, decrease, rejected, ~holds)  # one copy from the card
            if not n_left:
                return Solved(values, gradient, *totals)
            left = torch.nonzero(~holds)[:, 0]
            rows = active[left]
            search = _Search(self, rows, point[left], predicted[left], slope[left])
            search.run(x[left])
            values[rows] = search.best
            decrease[rows] += search.gain - predicted[left]
            rejected[rows] |= search.shortened
            more = block.lengths[rows] <= SHORT_ROW
            if step == 0 and len(rows) >= FEW_ROWS * len(b):
                more |= True
            again = torch.nonzero(more & (search.gain > 0.0))[:, 0]
            active, point = rows[again], search.best[again]
            if len(active):
                sums = self.sums(active, point, hessian=True)
        return Solved(values, gradient, *_totals(columns, loss, decrease, rejected))

    def _projected(self, b: Any, gradient: Any) -> Any:
        """Size of what is left of the slope within the bounds, of rows with counts."""
        lower, upper, penalty = self.box
        slope = gradient + penalty
        slope = torch.where(b <= lower, slope.clamp(max=0.0), slope)
        slope = torch.where(b >= upper, slope.clamp(min=0.0), slope).abs()
        return slope * (self.block.lengths > 0)[:, None] if self.block.has_empty else slope

    def sums(self, rows: Any, b: Any, *, hessian: bool, with_loss: bool = True) -> Sums:
        """Loss, gradient and Hessian of some rows, penalty excluded."""
        design, own = self.design, self._of(self.own, rows)
        form = design.form
        loss, gradient, H, exact = kernels.evaluate(
            self.block, rows, b, design, own=own, hessian=hessian, with_loss=with_loss
        )
        if form.exact:
            whole = kernels.dense_sums(b, design, own=own, hessian=hessian)
            return Sums(loss + whole.loss, gradient + whole.gradient, H + whole.hessian if hessian else None)
        linear, square = linears(own, design), gram_products(own, design, b)
        if form.concave:
            product = gram_products(own, design, b, concave=True)
            exact = self._approximated(own, b, product, exact)
            square, loss = square + product, loss + _excess_cost(exact)
            gradient = gradient + self._excess_gradient(rows, own, b, product, exact)
        if with_loss:
            loss = loss + (b * (linear + square)).sum(1)
        gradient = (gradient + linear).add(square, alpha=2.0)
        if hessian and not form.linear:
            H = with_grams(H, own, design)
        return Sums(loss, gradient, H, exact)

    def change(self, rows: Any, b: Any, step: Any) -> Any:
        """Change of the penalised loss of some rows."""
        own = self.own.at(rows)
        loss = kernels.change(self.block, rows, b, step, self.design, own=own)
        loss = loss + (step * self.box.penalty[rows]).sum(1)
        if self.design.form.exact:
            return loss + kernels.dense_change(b, step, self.design, own=own)[0]
        product = gram_products(own, self.design, 2.0 * b + step)
        if self.design.form.concave:
            before, after = (self.sums(rows, at, hessian=False).concave for at in (b, b + step))
            loss = loss + _excess_cost(after) - _excess_cost(before)
            product = product + gram_products(own, self.design, 2.0 * b + step, concave=True)
        return loss + (step * (linears(own, self.design) + product)).sum(1)

    def _approximated(self, own: Own, b: Any, product: Any, exact: Any) -> Any:
        """``Sums.concave`` of the approximated zeros: that of all entries, less those that are exact."""
        whole = torch.stack([(b * declines(own, self.design)).sum(1), -2.0 * (b * product).sum(1)], 1)
        left = whole - exact
        left = torch.where(left > LEAST_LEFT[self.design.X.dtype] * whole, left, 0.0)
        left[:, 1] = torch.where(whole[:, 1] > MOST_CURVATURE, IMPOSSIBLE, left[:, 1])
        return left

    def _stays_inside(self, rows: Any, step: Any, approximated: Any) -> Any:
        """Whether the concave part surely holds where the step ends; see ``cpp/row.hpp``."""
        own = self._of(self.own, rows)
        slope, curvature = approximated.unbind(1)
        change = (-2.0 * (step * gram_products(own, self.design, step, concave=True)).sum(1)).clamp(min=0.0)
        fall = (step.clamp(max=0.0) * declines(own, self.design)).sum(1)
        root = curvature.sqrt() + change.sqrt()
        return (root == 0.0) | (root**2 <= MOST_BEND * (slope + fall))

    def _excess_gradient(self, rows: Any, own: Own, b: Any, product: Any, approximated: Any) -> Any:
        """Gradient of `_excess_cost`: a second pass over the exact entries of the few rows that have it."""
        gradient, ratio = torch.zeros_like(b), _excess(approximated)
        there = torch.nonzero(ratio)[:, 0]
        if not len(there):
            return gradient
        some, ratio, at = own.at(there), ratio[there, None], b[there]
        by_curvature, by_slope = ratio - 0.5 * ratio**2, -MOST_BEND * ratio
        weights = torch.cat([by_slope, by_curvature], 1)
        exact = kernels.evaluate(
            self.block, rows[there], at, self.design, own=some, hessian=False, with_loss=False, curbed=weights
        ).gradient
        gradient[there] = by_slope * declines(some, self.design) - 4.0 * by_curvature * product[there] - exact
        return gradient

    def _surely_small(self, rows: Any, step: Any, curvature: Any) -> Any:
        """Whether every eta changes so little that the full step must lower the loss; a cheap bound."""
        if self.design.form.dispersed:  # D may be large: there is no cheap bound
            return torch.zeros(len(rows), dtype=torch.bool, device=step.device)
        least = self.block.smallest if rows is self.all else self.block.smallest[rows]
        small = curvature <= 0.04 * least
        if not self.design.form.identity:
            small &= abs(step) @ self.design.largest <= 0.2
        return small

    def _holds(self, rows: Any, b: Any, step: Any, curvature: Any) -> Any:
        """Whether the Hessian along the step stays below twice its start."""
        form = self.design.form
        least, most = (0.2, 0.5) if form.dispersed else (0.27, 0.6)
        if form.identity:  # a larger eta has less curvature
            most = math.inf
        own, sure = self._of(self.own, rows), self._surely_small(rows, step, curvature)
        shrink, growth, rise = kernels.reach(
            self.block, rows, b, step, self.design, own=own, known=sure, limits=(least, most)
        )
        holds = shrink <= least
        if form.identity or not form.exact:
            return sure | (holds & (growth <= most)) | (rise <= MOST_RISE * curvature)
        small = sure | (step.clamp(min=0.0) @ self.design.largest <= most)
        doubtful = torch.nonzero(holds & ~small)[:, 0]
        if len(doubtful):
            some = own.at(doubtful)
            growth = kernels.dense_change(b[doubtful], step[doubtful], self.design, own=some)[1]
            small[doubtful] = growth <= most
        return sure | (holds & small)


def _totals(columns: Any, *of_rows: Any) -> tuple[Any, ...]:
    """Sum numbers of rows, and bring the sums and those of columns to the host together."""
    sums = torch.stack([one.sum(dtype=torch.float64) for one in of_rows])
    there = torch.cat([columns.flatten(), sums]).cpu().numpy()
    return there[: -len(sums)].reshape(columns.shape), *there[-len(sums) :].tolist()


def _excess(approximated: Any) -> Any:
    """Part of the concave curvature of every row that is more than its slope allows."""
    slope, curvature = approximated.unbind(1)
    ratio = torch.where(curvature > 0.0, 1.0 - MOST_BEND * slope / curvature.clamp(min=1e-300), 0.0)
    return torch.where(ratio > 1e-9, ratio, 0.0)


def _excess_cost(approximated: Any) -> Any:
    """Cost of rows beyond where the concave part holds; see ``tests/reference_engine.py``."""
    return 0.5 * _excess(approximated) ** 2 * approximated[:, 1]


class _Search:
    """Line search for rows whose full step is not sure to lower the loss: a leap, then shorter steps."""

    def __init__(self, rows: Rows, chosen: Any, at: Any, predicted: Any, slope: Any) -> None:
        self._rows, self._chosen, self._at = rows, chosen, at
        self._predicted, self._slope = predicted, slope
        self.best, self.gain = at.clone(), torch.zeros_like(predicted)
        self.shortened = torch.zeros_like(predicted, dtype=torch.bool)

    def run(self, to: Any) -> None:
        """Find `best` and `gain`, from the full step's end `to`."""
        leap, far = self._leap(to)
        leaping = torch.nonzero(far)[:, 0]
        if len(leaping):
            self._take(leaping, leap[leaping], self._fall(leaping, leap[leaping]), 1.0)
        left = torch.nonzero(self.gain <= 0.0)[:, 0]
        if len(left):
            self._take(left, to[left], self._fall(left, to[left]), 1.0)
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
        box = rows.box.at(self._chosen)
        down = declines(rows.own.at(self._chosen), rows.design) + box.penalty
        up = down - self._slope
        far = (down > 0.0) & (up > 4.0 * down) & (box.lower < box.upper)
        safe = torch.where(down > 0.0, down, 1.0)
        least = rows.block.smallest[self._chosen][:, None]
        lifted = torch.where(self._at > 0.0, self._at * (up / safe), 0.1 * least / safe)
        form = rows.design.form
        if form.dispersed and not form.linear:  # the largest mean grows by that ratio, see cpp/newton.hpp
            widest = rows.design.largest
            grown = torch.where(self._at > 0.0, torch.expm1(widest * self._at) * (up / safe), widest * lifted)
            lifted = torch.log1p(grown) / widest
        return torch.where(far, torch.minimum(lifted, box.upper), to), far.any(1)
