"""Compiled half-step (cpp/bindings.cpp): parameters by position, contiguous arrays, outputs in place."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Floats: TypeAlias = NDArray[np.float64]
_Tables: TypeAlias = tuple[_Floats, _Floats, _Floats]
_Counts: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

class Side:
    def __init__(
        self,
        indptr: NDArray[np.int64],
        indices: NDArray[np.int32],
        counts: _Counts,
        row_exposure: _Floats,
        n_columns: int,
        column_exposure: _Floats | None,
        link: str,
        noise: str,
        row_dispersion: _Floats | None,
        column_dispersion: _Floats | None,
    ) -> None: ...
    def set_batches(
        self,
        row_batch: NDArray[np.int32] | None,
        column_batch: NDArray[np.int32] | None,
        effects: _Floats,
    ) -> None: ...
    def set_zeros(
        self,
        stored_indptr: NDArray[np.int64] | None,
        stored_indices: NDArray[np.int32] | None,
        row_quadratic: _Floats | None,
        column_quadratic: _Floats | None,
        row_linear: _Floats,
        row_quadratics: _Floats,
        column_linear: _Floats,
        column_quadratics: _Floats,
    ) -> None: ...

def run(
    kernel: str,
    task: str,
    side: Side,
    start: _Floats,
    design: _Floats,
    tables: _Tables,
    values: _Floats,
    gradient: _Floats,
    loss: _Floats,
    decrease: _Floats,
    rejected: NDArray[np.uint8],
    batch_sums: _Floats,
    with_loss: bool,
    n_threads: int,
    /,
) -> None: ...
def add_statistics(
    kernel: str,
    side: Side,
    start: _Floats,
    design: _Floats,
    loss: _Floats,
    gradient: _Floats,
    hessian: _Floats,
    n_threads: int,
    /,
) -> None: ...
def survey_zeros(
    kernel: str,
    side: Side,
    start: _Floats,
    design: _Floats,
    stride: int,
    convex: bool,
    thresholds: _Floats,
    error: _Floats,
    n_above: _Floats,
    quadratic: _Floats,
    n_threads: int,
    /,
) -> None: ...
def collect_zeros(
    kernel: str,
    side: Side,
    start: _Floats,
    design: _Floats,
    thresholds: _Floats,
    exposure: _Floats,
    n_threads: int,
    /,
) -> tuple[NDArray[np.int64], NDArray[np.int32]]: ...
def zero_errors(
    kernel: str,
    side: Side,
    start: _Floats,
    design: _Floats,
    stride: int,
    quadratic: _Floats,
    signed_error: _Floats,
    absolute_error: _Floats,
    n_threads: int,
    /,
) -> None: ...
def take_canonical(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32] | NDArray[np.int64],
    values: NDArray[np.generic],
    n_columns: int,
    whole: bool,
    out_indices: NDArray[np.int32] | None,
    out_values: NDArray[np.float32] | None,
) -> bool: ...
def transpose(
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    values: NDArray[np.generic],
    n_columns: int,
    out_indptr: NDArray[np.int64],
    out_rows: NDArray[np.int32],
    out_values: NDArray[np.generic],
    /,
) -> None: ...
def extrapolate(to: _Floats, since: _Floats, by: float, least: float, out: _Floats, /) -> None: ...
def side_residual(
    values: _Floats,
    gradient: _Floats,
    counted: NDArray[np.uint8],
    tables: _Tables,
    /,
) -> float: ...
def add_spectrum(
    kernel: str,
    side: Side,
    start: _Floats,
    design: _Floats,
    low: _Floats,
    n_bins: int,
    entries: _Floats,
    counted: _Floats,
    n_threads: int,
    /,
) -> None: ...
def solve_programs(
    kernel: str,
    hessian: _Floats,
    gradient: _Floats,
    start: _Floats,
    tables: _Tables,
    values: _Floats,
    decrease: _Floats,
    curvature: _Floats,
    n_threads: int,
    /,
) -> None: ...
def runnable_kernels() -> list[str]: ...
def after_fork() -> None: ...
def max_threads() -> int: ...
