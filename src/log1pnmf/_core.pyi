"""Compiled half-step (cpp/bindings.cpp): parameters by position, contiguous arrays, outputs in place."""

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

_Floats: TypeAlias = NDArray[np.float64]
_Counts: TypeAlias = NDArray[np.float32] | NDArray[np.float64]

def run(
    kernel: str,
    task: str,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    counts: _Counts,
    row_exposure: _Floats,
    column_exposure: _Floats,
    identity: bool,
    exact_zeros: bool,
    large: bool,
    a1: float,
    a2: float,
    start: _Floats,
    design: _Floats,
    penalty: _Floats,
    upper: float,
    values: _Floats,
    gradient: _Floats,
    loss: _Floats,
    decrease: _Floats,
    rejected: NDArray[np.uint8],
    n_threads: int,
    /,
) -> None: ...
def add_statistics(
    kernel: str,
    indptr: NDArray[np.int64],
    indices: NDArray[np.int32],
    counts: _Counts,
    row_exposure: _Floats,
    column_exposure: _Floats,
    identity: bool,
    exact_zeros: bool,
    large: bool,
    a1: float,
    a2: float,
    start: _Floats,
    design: _Floats,
    loss: _Floats,
    gradient: _Floats,
    hessian: _Floats,
    n_threads: int,
    /,
) -> None: ...
def solve_programs(
    kernel: str,
    hessian: _Floats,
    gradient: _Floats,
    start: _Floats,
    penalty: _Floats,
    upper: float,
    values: _Floats,
    decrease: _Floats,
    curvature: _Floats,
    n_threads: int,
    /,
) -> None: ...
def apply(kernel: str, function: str, x: _Floats, y: _Floats, /) -> None: ...
def runnable_kernels() -> list[str]: ...
def after_fork() -> None: ...
def max_threads() -> int: ...
