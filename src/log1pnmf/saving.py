"""The estimator as arrays and plain values, and back."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

import numpy as np

__all__ = ["pack_parameters", "unpack_parameters"]

PARAMETER = "parameter."
NOT_SAVED = ("callbacks",)


def pack_parameters(parameters: Mapping[str, Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
    """Take apart what can be saved: numbers, strings, paths, arrays and tuples of numbers or of arrays.

    Callbacks, and random states that are not a number, are left out.

    Parameters
    ----------
    parameters : dict

    Returns
    -------
    arrays : dict of str to ndarray
    values : dict
        Numbers, strings, None, and lists of numbers.
    """
    arrays: dict[str, np.ndarray] = {}
    values: dict[str, Any] = {}
    for name, value in parameters.items():
        if name in NOT_SAVED:
            continue
        if value is None or isinstance(value, str | bool | int | float | np.generic):
            values[name] = value.item() if isinstance(value, np.generic) else value
        elif isinstance(value, os.PathLike):
            values[name] = os.fspath(value)
        elif name == "interval":
            values[name] = [float(end) for end in value]
        elif name == "init":
            for part, array in zip(("loadings", "factors"), value, strict=True):
                arrays[f"{PARAMETER}init.{part}"] = np.asarray(array, dtype=np.float64)
        elif name == "size_factors":
            arrays[f"{PARAMETER}size_factors"] = np.asarray(value, dtype=np.float64)
    return arrays, values


def unpack_parameters(arrays: Mapping[str, np.ndarray], values: Mapping[str, Any]) -> dict[str, Any]:
    """Put together what `pack_parameters` took apart.

    Parameters
    ----------
    arrays : dict of str to ndarray
        Others among them are left alone.
    values : dict

    Returns
    -------
    dict
    """
    parameters = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    if f"{PARAMETER}init.loadings" in arrays:
        parameters["init"] = tuple(arrays[f"{PARAMETER}init.{part}"] for part in ("loadings", "factors"))
    if f"{PARAMETER}size_factors" in arrays:
        parameters["size_factors"] = arrays[f"{PARAMETER}size_factors"]
    return parameters
